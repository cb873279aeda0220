//! `cargo xtask api`: the public API of the published crates, one line for each item, read from their sources.
//!
//! The lint `unreachable_pub` is on, so every `pub` item is reachable. Paths leave out private modules: moving code between
//! private modules changes nothing here.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use syn::spanned::Spanned;
use syn::{Attribute, Fields, ImplItem, Item, Meta, Signature, TraitItem, UseTree, Visibility};

/// The crates that are published for use in programs.
const CRATES: [&str; 8] = [
    "oncebox-core",
    "oncebox-derive",
    "oncebox-http",
    "oncebox-rabbitmq",
    "oncebox-sqlite",
    "oncebox-postgres",
    "oncebox-testing",
    "oncebox",
];

/// The attributes that belong to an item's API.
const SHOWN: [&str; 7] = [
    "cfg",
    "deprecated",
    "derive",
    "non_exhaustive",
    "proc_macro",
    "proc_macro_attribute",
    "proc_macro_derive",
];

/// Writes a file for each crate.
pub(crate) fn write(root: &Path) -> Result<()> {
    for name in CRATES {
        let path = snapshot(root, name);
        fs::create_dir_all(path.parent().context("a snapshot without a folder")?)
            .context("creating docs/api")?;
        fs::write(&path, api(root, name)?).with_context(|| format!("writing {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

fn snapshot(root: &Path, name: &str) -> PathBuf {
    root.join("docs/api").join(format!("{name}.txt"))
}

/// The API of a crate, sorted.
fn api(root: &Path, name: &str) -> Result<String> {
    let file = root.join("crates").join(name).join("src/lib.rs");
    let mut api = Api::default();
    let module = Module { path: name.replace('-', "_"), is_public: true, folder: folder(&file) };
    api.add_file(&file, &module)?;
    // Types are known by name only: an impl stays if any type of that name is public.
    let is_private = |name: &String| api.private_types.contains(name) && !api.public_types.contains(name);
    let impls = api.impls.into_iter().filter(|(name, _)| !is_private(name)).map(|(_, line)| line);
    api.lines.extend(impls);
    Ok(api.lines.iter().map(|line| format!("{line}\n")).collect())
}

/// Where the files of a file's modules are.
fn folder(file: &Path) -> PathBuf {
    let is_root = file.file_name().is_some_and(|name| name == "lib.rs" || name == "mod.rs");
    if is_root { file.with_file_name("") } else { file.with_extension("") }
}

/// A module on the way through a crate.
struct Module {
    /// The path of its items, without private modules.
    path: String,
    /// Whether it and all modules above it are public.
    is_public: bool,
    folder: PathBuf,
}

#[derive(Default)]
struct Api {
    lines: BTreeSet<String>,
    /// Types by their visibility: impls of private ones are not listed.
    public_types: BTreeSet<String>,
    private_types: BTreeSet<String>,
    /// The lines of impls, with the name of their type.
    // Filtered at the end: an impl may come before the declaration of its type.
    impls: BTreeSet<(String, String)>,
}

/// The text of one file. Signatures are copied from it.
struct SourceFile(String);

impl SourceFile {
    /// On one line, without a comma before the closing bracket.
    fn text(&self, range: Range<usize>) -> String {
        let text = self.0.get(range).unwrap_or_default();
        let without_comments = text.lines().map(|line| line.split("//").next().unwrap_or_default());
        let words: Vec<&str> = without_comments.flat_map(str::split_whitespace).collect();
        let mut text = words.join(" ");
        for (wide, narrow) in [("( ", "("), (", )", ")"), (" )", ")"), ("< ", "<"), (", >", ">"), (",)", ")")]
        {
            text = text.replace(wide, narrow);
        }
        text
    }

    fn of(&self, part: &impl Spanned) -> String {
        self.text(part.span().byte_range())
    }

    /// The attributes that are shown, each with a space behind it.
    fn attributes(&self, attributes: &[Attribute]) -> String {
        let is_shown = |attribute: &&Attribute| SHOWN.iter().any(|shown| attribute.path().is_ident(shown));
        attributes.iter().filter(is_shown).map(|attribute| self.of(attribute) + " ").collect()
    }

    /// Without the `mut` of arguments, which is not part of the API.
    fn signature(&self, signature: &Signature) -> String {
        self.of(signature).replace("(mut ", "(").replace(", mut ", ", ")
    }

    /// The fields that are public, in the brackets of a type or a variant.
    fn fields(&self, fields: &Fields, are_all_public: bool) -> String {
        let is_public = |field: &&syn::Field| are_all_public || is_public(&field.vis);
        let shown: Vec<String> = fields
            .iter()
            .filter(is_public)
            .filter(|field| !is_hidden(&field.attrs))
            .map(|field| {
                let name = field.ident.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
                format!("{name}{}", self.of(&field.ty))
            })
            .collect();
        let rest = if shown.len() < fields.len() { Some("..".to_owned()) } else { None };
        let shown: Vec<String> = shown.into_iter().chain(rest).collect();
        match fields {
            Fields::Named(_) => format!(" {{ {} }}", shown.join(", ")),
            Fields::Unnamed(_) => format!("({})", shown.join(", ")),
            Fields::Unit => String::new(),
        }
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// Whether an item is for tests only, or hidden from the documentation.
fn is_hidden(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let Meta::List(list) = &attribute.meta else { return false };
        let tokens = list.tokens.to_string();
        (list.path.is_ident("doc") && tokens == "hidden")
            || (list.path.is_ident("cfg") && (tokens == "test" || tokens == "doctest"))
    })
}

impl Api {
    fn add_file(&mut self, file: &Path, module: &Module) -> Result<()> {
        let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        let parsed = syn::parse_file(&text).with_context(|| format!("parsing {}", file.display()))?;
        self.add_items(&parsed.items, module, &SourceFile(text))
    }

    fn add_items(&mut self, items: &[Item], module: &Module, source: &SourceFile) -> Result<()> {
        let public_modules: Vec<String> = items.iter().filter_map(public_module).collect();
        let private_modules: Vec<String> = items.iter().filter_map(private_module).collect();
        for item in items {
            match item {
                Item::Mod(inner) if !is_hidden(&inner.attrs) => self.add_module(inner, module, source)?,
                Item::Use(reexport)
                    if is_public(&reexport.vis) && !is_hidden(&reexport.attrs) && module.is_public =>
                {
                    let prefix = source.attributes(&reexport.attrs);
                    for path in leaves(&reexport.tree) {
                        let first = path.split("::").next().unwrap_or_default().to_owned();
                        // Items from a private module are listed as items of this one.
                        if public_modules.contains(&first) || !private_modules.contains(&first) {
                            self.lines.insert(format!("{}: {prefix}pub use {path}", module.path));
                        }
                    }
                }
                other => self.add_item(other, module, source),
            }
        }
        Ok(())
    }

    fn add_module(&mut self, inner: &syn::ItemMod, outer: &Module, source: &SourceFile) -> Result<()> {
        let name = inner.ident.to_string();
        let is_public = is_public(&inner.vis);
        let module = Module {
            path: if is_public { format!("{}::{name}", outer.path) } else { outer.path.clone() },
            is_public: outer.is_public && is_public,
            folder: outer.folder.join(&name),
        };
        if module.is_public {
            self.lines.insert(format!("{}: {}pub mod", module.path, source.attributes(&inner.attrs)));
        }
        match &inner.content {
            Some((_, items)) => self.add_items(items, &module, source),
            None => {
                let file = outer.folder.join(format!("{name}.rs"));
                let file = if file.exists() { file } else { module.folder.join("mod.rs") };
                self.add_file(&file, &module)
            }
        }
    }

    fn add_item(&mut self, item: &Item, module: &Module, source: &SourceFile) {
        let path = &module.path;
        self.add_type(item);
        let shown = |attributes: &[Attribute], visibility: &Visibility| {
            (is_public(visibility) && !is_hidden(attributes)).then(|| source.attributes(attributes))
        };
        let line = match item {
            Item::Const(item) => shown(&item.attrs, &item.vis)
                .map(|prefix| format!("{path}::{}: {prefix}pub const {}", item.ident, source.of(&item.ty))),
            Item::Static(item) => shown(&item.attrs, &item.vis)
                .map(|prefix| format!("{path}::{}: {prefix}pub static {}", item.ident, source.of(&item.ty))),
            Item::Fn(item) => shown(&item.attrs, &item.vis).map(|prefix| {
                format!("{path}::{}: {prefix}pub {}", item.sig.ident, source.signature(&item.sig))
            }),
            Item::Type(item) => shown(&item.attrs, &item.vis).map(|prefix| {
                let generics = source.of(&item.generics);
                format!("{path}::{}: {prefix}pub type{generics} = {}", item.ident, source.of(&item.ty))
            }),
            Item::Struct(item) => shown(&item.attrs, &item.vis).map(|prefix| {
                let (generics, fields) =
                    (generics(&item.generics, source), source.fields(&item.fields, false));
                format!("{path}::{}: {prefix}pub struct{generics}{fields}", item.ident)
            }),
            Item::Enum(item) => shown(&item.attrs, &item.vis).map(|prefix| {
                for variant in item.variants.iter().filter(|variant| !is_hidden(&variant.attrs)) {
                    let (prefix, fields) =
                        (source.attributes(&variant.attrs), source.fields(&variant.fields, true));
                    self.lines.insert(format!(
                        "{path}::{}::{}: {prefix}variant{fields}",
                        item.ident, variant.ident
                    ));
                }
                format!("{path}::{}: {prefix}pub enum{}", item.ident, generics(&item.generics, source))
            }),
            Item::Trait(item) => shown(&item.attrs, &item.vis).map(|prefix| {
                self.add_trait_items(item, path, source);
                let start = item.span().byte_range().start;
                let declared = source.text(
                    start.max(item.ident.span().byte_range().end)
                        ..item.brace_token.span.open().byte_range().start,
                );
                format!(
                    "{path}::{}: {prefix}pub trait{}{declared}",
                    item.ident,
                    if declared.starts_with(['<', ':']) || declared.is_empty() { "" } else { " " }
                )
            }),
            Item::Impl(item) if !is_hidden(&item.attrs) => {
                self.add_impl(item, path, source);
                None
            }
            Item::Macro(item)
                if item.attrs.iter().any(|attribute| attribute.path().is_ident("macro_export")) =>
            {
                let name = item.ident.as_ref().filter(|_| !is_hidden(&item.attrs));
                // An exported macro is always at the root.
                let root = path.split("::").next().unwrap_or_default();
                name.map(|name| format!("{root}::{name}: macro_rules"))
            }
            _ => None,
        };
        self.lines.extend(line);
    }

    fn add_type(&mut self, item: &Item) {
        let (visibility, name) = match item {
            Item::Struct(item) => (&item.vis, &item.ident),
            Item::Enum(item) => (&item.vis, &item.ident),
            Item::Trait(item) => (&item.vis, &item.ident),
            _ => return,
        };
        let types = if is_public(visibility) { &mut self.public_types } else { &mut self.private_types };
        types.insert(name.to_string());
    }

    fn add_trait_items(&mut self, item: &syn::ItemTrait, path: &str, source: &SourceFile) {
        for inner in &item.items {
            let line = match inner {
                TraitItem::Fn(method) if !is_hidden(&method.attrs) => {
                    let provided = if method.default.is_some() { "provided " } else { "" };
                    Some((
                        method.sig.ident.to_string(),
                        format!("{provided}{}", source.signature(&method.sig)),
                    ))
                }
                TraitItem::Const(constant) if !is_hidden(&constant.attrs) => {
                    let provided = if constant.default.is_some() { "provided " } else { "" };
                    Some((constant.ident.to_string(), format!("{provided}const {}", source.of(&constant.ty))))
                }
                TraitItem::Type(associated) if !is_hidden(&associated.attrs) => Some((
                    associated.ident.to_string(),
                    source.of(associated).trim_end_matches(';').to_owned(),
                )),
                _ => None,
            };
            self.lines.extend(line.map(|(name, text)| format!("{path}::{}::{name}: {text}", item.ident)));
        }
    }

    fn add_impl(&mut self, item: &syn::ItemImpl, path: &str, source: &SourceFile) {
        let header = source
            .text(item.impl_token.span.byte_range().start..item.brace_token.span.open().byte_range().start);
        let prefix = source.attributes(&item.attrs);
        let name = type_name(&item.self_ty);
        if item.trait_.is_some() {
            self.impls.insert((name, format!("{path}: {prefix}{header}")));
            return;
        }
        for inner in &item.items {
            let line = match inner {
                ImplItem::Fn(method) if is_public(&method.vis) && !is_hidden(&method.attrs) => {
                    Some((&method.attrs, source.signature(&method.sig)))
                }
                ImplItem::Const(constant) if is_public(&constant.vis) && !is_hidden(&constant.attrs) => {
                    Some((&constant.attrs, format!("const {}: {}", constant.ident, source.of(&constant.ty))))
                }
                _ => None,
            };
            self.impls.extend(line.map(|(attributes, text)| {
                (
                    name.clone(),
                    format!("{path}: {prefix}{header}: {}pub {text}", source.attributes(attributes)),
                )
            }));
        }
    }
}

/// The parameters, and the `where` clause with a space before it.
fn generics(generics: &syn::Generics, source: &SourceFile) -> String {
    let clause =
        generics.where_clause.as_ref().map(|clause| format!(" {}", source.of(clause))).unwrap_or_default();
    let parameters =
        if generics.params.is_empty() { String::new() } else { format!("<{}>", source.of(&generics.params)) };
    format!("{parameters}{clause}")
}

/// The last name of a type's path; empty for other types.
fn type_name(of: &syn::Type) -> String {
    let syn::Type::Path(path) = of else { return String::new() };
    path.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default()
}

fn public_module(item: &Item) -> Option<String> {
    let Item::Mod(module) = item else { return None };
    is_public(&module.vis).then(|| module.ident.to_string())
}

fn private_module(item: &Item) -> Option<String> {
    let Item::Mod(module) = item else { return None };
    (!is_public(&module.vis)).then(|| module.ident.to_string())
}

/// The paths of a `use`, each with its new name if it gets one.
fn leaves(tree: &UseTree) -> Vec<String> {
    match tree {
        UseTree::Path(path) => {
            leaves(&path.tree).into_iter().map(|leaf| format!("{}::{leaf}", path.ident)).collect()
        }
        UseTree::Name(name) => vec![name.ident.to_string()],
        UseTree::Rename(rename) => vec![format!("{} as {}", rename.ident, rename.rename)],
        UseTree::Glob(_) => vec!["*".to_owned()],
        UseTree::Group(group) => group.items.iter().flat_map(leaves).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
    }

    #[test]
    fn the_snapshots_show_the_public_api() {
        let mut changes = String::new();
        for name in CRATES {
            let recorded = fs::read_to_string(snapshot(root(), name)).unwrap_or_default();
            let found = api(root(), name).unwrap();
            let (recorded, found): (BTreeSet<&str>, BTreeSet<&str>) =
                (recorded.lines().collect(), found.lines().collect());
            let gone = recorded.difference(&found).map(|line| format!("- {line}\n"));
            changes.extend(gone.chain(found.difference(&recorded).map(|line| format!("+ {line}\n"))));
        }
        assert!(changes.is_empty(), "the public API has changed: run `cargo xtask api`\n{changes}");
    }

    #[test]
    fn every_kind_of_item_has_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let crates = folder.path().join("crates/demo/src");
        fs::create_dir_all(&crates).unwrap();
        fs::write(crates.join("lib.rs"), DEMO).unwrap();
        fs::write(crates.join("inner.rs"), "pub fn moved() {}\npub(crate) fn own() {}\n").unwrap();
        assert_eq!(api(folder.path(), "demo").unwrap(), DEMO_API);
    }

    const DEMO: &str = r#"
mod inner;
pub mod open { pub const LIMIT: u32 = 1; }
pub use inner::moved;
pub use open::LIMIT;
#[cfg(feature = "sqlite")]
pub use other::{A, b::C as D};
#[doc(hidden)]
pub mod __private {}
/// A doc line.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Point<T> where T: Copy {
    /// Shown.
    pub x: T,
    y: u8,
}
pub enum Choice { One(u8, String), Two { a: u8 }, None }
impl<T: Copy> Point<T> {
    pub const ZERO: u8 = 0;
    /// Moves it.
    pub async fn travel(
        mut self, // a comment
        by: T,
    ) -> Result<(), Error> { unreachable!() }
    fn own(&self) {}
}
impl Clone for Choice { fn clone(&self) -> Self { unreachable!() } }
struct Own;
impl Clone for Own { fn clone(&self) -> Self { unreachable!() } }
pub trait Store: Clone + Send {
    type Tx: Send;
    const NAME: &'static str;
    fn begin(&self) -> impl Future<Output = ()> + Send;
    fn check(&self) -> bool { true }
}
pub type Short<T> = Result<T, Error>;
#[macro_export]
macro_rules! suite { () => {}; }
#[cfg(test)]
mod tests { pub fn helper() {} }
fn private() {}
"#;

    const DEMO_API: &str = r#"demo: #[cfg(feature = "sqlite")] pub use other::A
demo: #[cfg(feature = "sqlite")] pub use other::b::C as D
demo: impl Clone for Choice
demo: impl<T: Copy> Point<T>: pub async fn travel(self, by: T) -> Result<(), Error>
demo: impl<T: Copy> Point<T>: pub const ZERO: u8
demo: pub use open::LIMIT
demo::Choice: pub enum
demo::Choice::None: variant
demo::Choice::One: variant(u8, String)
demo::Choice::Two: variant { a: u8 }
demo::Point: #[derive(Clone, Debug)] #[non_exhaustive] pub struct<T> where T: Copy { x: T, .. }
demo::Short: pub type<T> = Result<T, Error>
demo::Store: pub trait: Clone + Send
demo::Store::NAME: const &'static str
demo::Store::Tx: type Tx: Send
demo::Store::begin: fn begin(&self) -> impl Future<Output = ()> + Send
demo::Store::check: provided fn check(&self) -> bool
demo::moved: pub fn moved()
demo::open: pub mod
demo::open::LIMIT: pub const u32
demo::suite: macro_rules
"#;
}
