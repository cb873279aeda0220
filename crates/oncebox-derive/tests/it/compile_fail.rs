//! Every mistake has an error that says what to do.
//!
//! The texts are compared with the `.stderr` files. After a change of wording or of the compiler, regenerate the files with
//! `TRYBUILD=overwrite` and read them.

#[test]
fn mistakes_are_explained() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
}
