//! Scripts of PowerShell, read by a grammar of the language: what Windows would refuse before it runs a line is found here.

use std::path::PathBuf;
use std::process::Command;

use crate::installed::python_packages;

/// The grammar, which is a package of Python.
const PACKAGES: [&str; 2] = ["tree-sitter==0.25.2", "tree-sitter-powershell==0.26.4"];

const PARSE: &str = "import sys, tree_sitter, tree_sitter_powershell
parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_powershell.language()))
for path in sys.argv[1:]:
    tree = parser.parse(open(path, 'rb').read())
    nodes, wrong = [tree.root_node], []
    while nodes:
        node = nodes.pop()
        nodes += node.children
        if node.is_error or node.is_missing:
            wrong.append(node.start_point)
    if wrong or tree.root_node.child_count == 0:
        sys.exit(f'{path}: {wrong}')";

/// What is wrong with one of these scripts, if something is; `None` where the grammar cannot be installed.
pub fn parse(scripts: &[PathBuf]) -> Option<Result<(), String>> {
    let python = python_packages("powershell", &PACKAGES)?.join("python3");
    let output = Command::new(python).args(["-c", PARSE]).args(scripts).output().expect("python3 runs");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    Some(if output.status.success() { Ok(()) } else { Err(errors) })
}
