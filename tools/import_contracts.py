"""The import rule that import-linter has no contract for: a list of what *may* be imported.

type = "only_imports"
source = "penelope.policy"           # the package that is held to the rule
allowed = ["immutables"]             # besides itself and the standard library
forbidden_stdlib = ["time", ...]     # parts of the standard library that are not allowed
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from importlinter import Contract, ContractCheck, fields, output

if TYPE_CHECKING:
    from grimp import ImportGraph


class OnlyImports(Contract):
    """Every import inside `source` leads to itself, to `allowed` or to the standard library."""

    type_name = "only_imports"

    source = fields.StringField()
    allowed = fields.SetField(subfield=fields.StringField(), required=False)
    forbidden_stdlib = fields.SetField(subfield=fields.StringField(), required=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        del verbose
        options: Any = self  # a field holds its value here, not the descriptor that is declared
        source: str = options.source
        permitted: set[str] = set(options.allowed or ())
        permitted |= sys.stdlib_module_names - set(options.forbidden_stdlib or ())
        broken = [
            f"{importer} (line {_line(graph, importer, imported)}) imports {imported}"
            for importer in sorted({source} | graph.find_descendants(source))
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if not _within(imported, source) and imported.partition(".")[0] not in permitted
        ]
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["broken"]:
            output.print_error(line, bold=False)


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def _line(graph: ImportGraph, importer: str, imported: str) -> int:
    details = graph.get_import_details(importer=importer, imported=imported)
    return details[0]["line_number"]
