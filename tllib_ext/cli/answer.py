"""Correct the predictions of a finished run by a person's answers.

    {prog} runs/my_run answers.csv              what runs/my_run/questions.html saved, or any CSV with path,label
    {prog} runs/my_run answers.csv --trust      also use answers that contradict the images around them

Labels are source classes, unknown (or none of these) and cannot tell. predictions.csv, target_model.json, results.json and
report.html are written anew, what they were before stays in answers/0, answers/1, …; tllib-ext predict uses the answers for
new images. Answers about a random sample of tllib-ext ask --measure estimate the metrics and correct nothing.
"""

from typing import Optional, Sequence

from tllib_ext.cli.parser import Parser
from tllib_ext.errors import printable
from tllib_ext.typing import Record

__all__ = ["main", "summary"]

_NAMES = {"unknown_share": "unknown", "accuracy": "accuracy", "os_star": "OS*", "unk": "UNK", "os": "OS", "h_score": "H-score"}


def main(argv: Optional[Sequence[str]] = None, prog: str = "tllib-ext answer") -> int:
    """Parse the flags, take in the answers, say what changed."""
    parser = Parser(prog=prog, description=(__doc__ or "").replace("{prog}", prog))
    parser.add_argument("run", metavar="RUN", help="folder of a finished run")
    parser.add_argument("answers", metavar="CSV", help="a file with the columns path and label")
    parser.add_argument("--trust", action="store_true", help="use answers that contradict the images around them")
    args = parser.parse_args(argv)
    from tllib_ext.report.page import write_report
    from tllib_ext.training.answering import answer_run

    print(summary(answer_run(args.run, args.answers, args.trust, write_report), args.run))
    return 0


def summary(facts: Record, run: str) -> str:
    """What the answers changed, in a few lines."""
    lines = [f"{facts['number']} answers: {facts['changed']} images have another label;"
             f" {facts['unknown_before']:.1%} were called unknown, {facts['unknown_after']:.1%} are now"]  # fmt: skip
    if facts["cannot_tell"]:
        lines.append(f"{facts['cannot_tell']} images of which nobody can tell")
    if doubtful := facts["doubtful"]:
        lines.append(f"{len(doubtful)} answers contradict the images around them and do not count until they are given again:")
        lines += [f"  {printable(item['path'])}: {printable(item['label'])}" for item in doubtful[:20]]
        lines.append(f"tllib-ext ask {run} asks them again; --trust accepts them")
    found = facts.get("estimates") or {}
    if found:
        lines.append(f"estimated from {found['number']} images drawn at random, with {found['level']:.0%} intervals:")
    for name, label in _NAMES.items():
        values = [f"{x[0]:.1%} ({x[1]:.1%} to {x[2]:.1%})" if x else "not defined"
                  for x in (found[when][name] for when in ("before", "after") if found)]  # fmt: skip
        if values:
            lines.append(
                f"  {label:<9}{values[0]} before, {values[1]} after" if values[0] != values[1] else f"  {label:<9}{values[0]}"
            )
    return "\n".join(lines)
