"""What a run on photographs found, in sentences for its last lines, and what to type next."""

from collections import Counter
from typing import List

import numpy as np

from tllib_ext.errors import visible
from tllib_ext.report.run_files import RunFiles

__all__ = ["findings_in_words"]

#: a share of unknown whose error is larger is not known (the target model warns of it too)
_NAMED = 4


def findings_in_words(run: RunFiles, labelled: str) -> List[str]:
    """Four to six lines: what the new images are, which labels look wrong, what is doubtful, the next command.

    Args:
        run (RunFiles): a finished run
        labelled (str): folder of the labelled images
    """
    new, model = run.predictions, run.target_model or {}
    unknown = new.predicted == run.split.unknown
    counts = Counter(new.names[label] for label in new.predicted[~unknown].tolist())
    named = ", ".join(f"{count} {visible(name)}" for name, count in counts.most_common(_NAMED))
    more = (
        f" and {sum(counts.values()) - sum(n for _, n in counts.most_common(_NAMED))} of other classes"
        if len(counts) > _NAMED
        else ""
    )
    found = f"{_count(len(new), 'new image')}: {named or 'none of a known class'}{more}"
    lines = [f"found: {found}; {int(unknown.sum())} of no class that you labelled{_groups(model)}"]
    wrong, doubts = 0, [str(text) for text in model.get("warnings", ())]
    if run.suspects is not None:
        suspects = run.suspects
        doubtful = (suspects.suspicion > 0) & (suspects.suggested != suspects.given)
        wrong = int(doubtful.sum())
        pairs = Counter(zip(suspects.given[doubtful].tolist(), suspects.suggested[doubtful].tolist()))
        often = [
            f"{visible(suspects.names[a])} that look like {visible(suspects.names[b])}" for (a, b), _ in pairs.most_common(2)
        ]
        about = f"; most often {' and '.join(often)}" if often else ""
        lines.append(f"labels: {wrong} of {len(suspects)} look wrong{about}")
    if run.label_model is not None and not run.label_model.get("rate_known", True):
        doubts.append(f"of the labels {run.label_model.get('rate_text', 'an unknown share is wrong')}")
    close = _close(run)
    if close:
        doubts.append(
            f"{_count(close, 'new image')} could as well be another class or unknown (the last of each class on the page)"
        )
    lines.append("doubtful: " + ("; ".join(doubts) if doubts else "nothing that these features show"))
    lines.append(f"page: {run.folder / 'report.html'}")
    lines.append(f"next: tllib-ext ask {run.folder}   (20 questions about the new images; the answers correct the predictions)")
    if wrong:
        lines.append(
            f"      tllib-ext audit {labelled} --out {run.folder}/audit   (which labels to correct; it moves nothing by itself)"
        )
    return lines


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _groups(model: "dict[str, object]") -> str:
    groups = model.get("groups")
    number = len({group for group in groups if group >= 0}) if isinstance(groups, list) else 0
    interval = model.get("share_interval")
    text = f", in {number} groups" if number > 1 else ""
    if isinstance(interval, list) and model.get("decides") and model.get("share_known"):
        text += f" (truly {interval[0]:.0%} to {interval[1]:.0%} of all)"
    return text


def _close(run: RunFiles) -> int:
    """New images that are called known and whose class has less than 60 % of the known classes."""
    first = run.predictions.top_probs[:, 0]
    known = run.predictions.predicted != run.split.unknown
    return int(np.count_nonzero(known & (first < 0.6)))
