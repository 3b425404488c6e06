"""Move images into the folders of their labels, as a file of labels says; shown first, moved with --yes.

    {prog} runs/audit/moves.csv                          what it would move
    {prog} runs/audit/moves.csv --yes                    move
    {prog} labels.csv --root my_photos/labelled          any file with the columns path,label

An image in DIR/CLASS/… goes to the same place below DIR/LABEL. Nothing outside of DIR is touched, no file is replaced, folders
that become empty are removed. Exit code 1: some images have another label and were not moved; each is named.
"""

import json
from pathlib import Path
from typing import Optional, Sequence

from tllib_ext.cli.parser import Parser
from tllib_ext.errors import UserError, visible

__all__ = ["main"]


def main(argv: Optional[Sequence[str]] = None, prog: str = "tllib-ext apply") -> int:
    """Parse the flags, plan, show or move."""
    parser = Parser(prog=prog, usage=f"{prog} FILE [flags]", description=(__doc__ or "").replace("{prog}", prog))
    parser.add_argument("file", metavar="FILE", help="CSV file with the columns path,label: moves.csv, suspects.csv, your own")
    parser.add_argument("--root", metavar="DIR", help="the data folder; default: the one of the audit that FILE is of")
    parser.add_argument("--labels-column", metavar="NAME", help="the column of the labels, if there are several")
    parser.add_argument("--yes", action="store_true", help="move; without it the moves are only shown")
    args = parser.parse_args(argv)
    from tllib_ext.vision.datasets.labels_file import read_labels
    from tllib_ext.vision.datasets.moves import plan_moves

    table = read_labels(args.file, args.labels_column)
    if table.key != "path" or table.numbered or len(table.labels) != 1:
        raise UserError(f"{args.file}: expected the column path and one column of class names")
    (labels,) = table.labels.values()
    root = args.root or _recorded_root(Path(args.file))
    plan = plan_moves(root, table.keys.tolist(), labels.tolist(), None if table.given is None else table.given.tolist())
    removed = plan.carry_out() if args.yes else []
    for old, new in plan.moves:
        print(f"{visible(old)} -> {visible(new)}")
    for path, reason in plan.refused:
        print(f"not moved: {visible(path)}: {visible(reason)}")
    for folder in removed:
        print(f"removed the empty folder {visible(folder)}")
    done = f"{len(plan.moves)} {'moved' if args.yes else 'to move'}, {len(plan.refused)} not moved, {plan.unchanged} in place"
    print(done if args.yes or not plan.moves else f"{done}; nothing was changed: add --yes to move")
    return 1 if plan.refused else 0


def _recorded_root(file: Path) -> str:
    """The data folder that the audit beside the file recorded."""
    try:
        root = json.loads((file.parent / "audit.json").read_text(encoding="utf-8"))["root"]
        if not isinstance(root, str):
            raise TypeError
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{file} is not beside an audit's audit.json: name the data folder (--root DIR)") from None
    return root
