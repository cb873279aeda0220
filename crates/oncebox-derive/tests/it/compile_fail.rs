//! Every mistake has an error that names its remedy. The texts are compared with the `.stderr` files; after a
//! change of wording or of compiler write them anew with `TRYBUILD=overwrite`, and read them.

#[test]
fn mistakes_are_explained() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
}
