"""``questions.html``: one page that asks a person about target images, by keyboard, from disk and without a network."""

import base64
import io
import json
from pathlib import Path
from typing import Dict, Optional, Sequence

from markupsafe import Markup

from tllib_ext.errors import UserError, visible
from tllib_ext.evaluation.answers_file import CANNOT_TELL, Question
from tllib_ext.evaluation.files import UNKNOWN, load_split
from tllib_ext.images import load_image
from tllib_ext.io import write_text
from tllib_ext.report.data_folder import DataFolder
from tllib_ext.report.templating import render

__all__ = ["questions_page", "write_questions_page"]

#: pixels of a picture's longer side, and bytes of all pictures together
_SIDE, _BYTES = 640, 24_000_000


def write_questions_page(folder: Path, questions: Sequence[Question], number: int) -> Path:
    """Write ``questions.html`` in a run folder; returns its path.

    Args:
        folder (Path): of the run
        questions (sequence of Question): what to ask
        number (int): of the round
    """
    folder = Path(folder)
    write_text(folder / "questions.html", questions_page(folder, questions, number))
    return folder / "questions.html"


def questions_page(folder: Path, questions: Sequence[Question], number: int) -> str:
    """The text of the page."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    files, split, room = DataFolder(config, folder), load_split(folder / "config.json"), _BYTES
    items = []
    for question in questions:
        picture = _picture(files.find(question.path)) if room > 0 else None
        room -= len(picture or "")
        likely = [name for name in question.likely if name != UNKNOWN]
        items.append({"path": question.path, "name": visible(files.name(question.path)), "likely": likely,
                      "again": question.again, "picture": picture})  # fmt: skip
    facts = {"questions": items, "classes": list(split.source_classes), "unknown": UNKNOWN, "cannotTell": CANNOT_TELL,
             "round": number, "run": str(folder.resolve())}  # fmt: skip
    return render("questions.html.j2", title=f"{len(items)} questions about {config.get('target_name') or 'new images'}",
                  facts=_json(facts), run=str(folder))  # fmt: skip


def _picture(path: Optional[str]) -> Optional[str]:
    """The image as a data address, None where there is none that can be read."""
    if path is None:
        return None
    try:
        image = load_image(path, max_side=_SIDE)
    except UserError:
        return None
    image.thumbnail((_SIDE, _SIDE))
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode("ascii")


def _json(facts: Dict[str, object]) -> Markup:
    """JSON that a script element can hold: no name in it ends the element or begins a comment."""
    text = json.dumps(facts)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
