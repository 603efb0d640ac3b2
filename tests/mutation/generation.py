"""Write a copy of the package whose remedies have mutmut's mutants in them, switched on by ``MUTANT_UNDER_TEST``."""

from __future__ import annotations

import ast
import difflib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
import libcst.matchers as m
from mutmut.mutation import file_mutation
from mutmut.utils.format_utils import parse_mutant_key

REMEDIES = Path("pytest_rlregress/remedies")
_MUTMUTS = [*file_mutation.mutation_operators]
#: Arguments that no guard can tell: another device than the one there is; lengths that a line of its own compares.
UNSEEN_ARGUMENTS = ("device", "strict")


@dataclass(frozen=True)
class RemedyMutant:
    """A change to a remedy: the lines that it takes away, the ones that it adds, and the line in the file.

    ``name`` is its name for ``MUTANT_UNDER_TEST``, ``reached_by`` that of the mutated function in mutmut's statistics.
    """

    name: str
    reached_by: str
    module: str
    function: str
    line: int
    removed: str
    added: str


def write_package(folder: Path, modules: Sequence[str]) -> list[RemedyMutant]:
    """Write the package into ``folder``, mutants in the ``modules`` of its remedies, all else as links.

    Mutmut leaves docstrings, annotations, decorators and what stands outside of functions alone. Left out here are
    the wording of texts, which is what stands in the parentheses of a ``raise`` and in a string literal with a space,
    and ``UNSEEN_ARGUMENTS``. A ``raise`` itself is mutated: to none, and to another class.
    """
    shutil.rmtree(folder, ignore_errors=True)
    (folder / REMEDIES).mkdir(parents=True)
    for parent in (REMEDIES.parent, REMEDIES):
        for entry in parent.iterdir():
            if entry != REMEDIES and entry.name != "__pycache__":
                (folder / entry).symlink_to(entry.resolve())
    return [mutant for module in modules for mutant in _write_module(folder / REMEDIES / f"{module}.py", module)]


def _write_module(target: Path, module: str) -> Iterator[RemedyMutant]:
    source = target.read_text()
    target.unlink()
    file_mutation.mutation_operators = [*_MUTMUTS, (cst.Raise, _without_raise)]
    tree, mutations, *ignored = file_mutation.create_mutations(target.name, _undecorated(source))
    texts = _texts(tree)
    kept = [one for one in mutations if id(one.original_node) not in texts and not _unseen(one)]
    written = file_mutation.combine_mutations_to_source(tree, kept, *ignored)
    target.write_text(f"{written.code}\nimport mutation.reach\n")
    begins, lines, copies = _functions(source), written.code.splitlines(), _functions(written.code)
    for name in written.mutant_names:
        mangled = name.rpartition("__mutmut_")[0]
        function = parse_mutant_key(mangled)[0]
        before, after = (
            [line.strip().replace(copy, function) for line in lines[copies[copy].lineno - 1 : copies[copy].end_lineno]]
            for copy in (f"{mangled}__mutmut_orig", name)
        )
        codes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        _, first, end, first_after, end_after = next(code for code in codes if code[0] != "equal")
        yield RemedyMutant(
            name=f"pytest_rlregress.remedies.{module}.{name}",
            reached_by=f"pytest_rlregress.remedies.{module}.{mangled}",
            module=module,
            function=function,
            line=begins[function].lineno + first,
            removed="\n".join(before[first:end]),
            added="\n".join(after[first_after:end_after]),
        )


def _without_raise(node: cst.Raise) -> Iterator[cst.CSTNode]:
    yield cst.Pass()
    if isinstance(node.exc, cst.Call):
        yield node.with_changes(exc=node.exc.with_changes(func=cst.Name("Exception")))


def _undecorated(source: str) -> str:
    """Make context managers in a line after the function: mutmut leaves functions with decorators alone."""
    tree = cst.parse_module(source)
    body: list[cst.BaseCompoundStatement | cst.SimpleStatementLine] = []
    for statement in tree.body:
        body.append(statement)
        if m.matches(statement, m.FunctionDef(decorators=[m.Decorator(m.Name("contextmanager"))])):
            name = cst.ensure_type(statement, cst.FunctionDef).name.value
            body[-1] = statement.with_changes(decorators=[])
            body.append(
                cst.ensure_type(cst.parse_statement(f"{name} = contextmanager({name})"), cst.SimpleStatementLine)
            )
    return tree.with_changes(body=body).code


def _texts(tree: cst.Module) -> set[int]:
    """The ids of the nodes whose change alters a text alone."""
    nodes: list[cst.CSTNode] = [
        one for one in m.findall(tree, m.SimpleString()) if " " in cst.ensure_type(one, cst.SimpleString).raw_value
    ]
    unseen = m.Arg(keyword=m.MatchIfTrue(lambda one: one is not None and one.value in UNSEEN_ARGUMENTS))
    nodes += m.findall(tree, unseen)
    nodes += [one.exc for one in m.findall(tree, m.Raise(exc=m.Call())) if isinstance(one, cst.Raise) and one.exc]
    found = set()
    while nodes:
        found.add(id(node := nodes.pop()))
        nodes += node.children
    return found


def _unseen(mutation: file_mutation.Mutation) -> bool:
    """Whether only arguments are changed that no guard can tell."""
    before, after = mutation.original_node, mutation.mutated_node
    if not isinstance(before, cst.Call) or not isinstance(after, cst.Call):
        return False
    changed = [one.keyword.value if one.keyword else "" for one in before.args if one not in after.args]
    return bool(changed) and set(changed) <= set(UNSEEN_ARGUMENTS)


def _functions(source: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    return {
        node.name: node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
