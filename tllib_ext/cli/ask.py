"""Choose the target images whose labels help a finished run most, and make a page that asks about them.

    {prog} runs/my_run                      20 questions: runs/my_run/questions.html, by keyboard; it saves answers.csv
    {prog} runs/my_run --n 40
    {prog} runs/my_run --measure --n 100    a random sample instead, for an honest estimate of the metrics

Then tllib-ext answer runs/my_run answers.csv. questions.csv beside the page is for a spreadsheet, or for features without
pictures: fill in its column label. Images that were asked before are passed over; answers that contradict the images
around them are asked again, first.
"""

from typing import Optional, Sequence

from tllib_ext.cli.parser import Parser, argument
from tllib_ext.training.setting import COUNT

__all__ = ["main"]


def main(argv: Optional[Sequence[str]] = None, prog: str = "tllib-ext ask") -> int:
    """Parse the flags, choose, write the questions."""
    parser = Parser(prog=prog, description=(__doc__ or "").replace("{prog}", prog))
    parser.add_argument("run", metavar="RUN", help="folder of a finished run")
    parser.add_argument("--n", type=argument(COUNT), metavar="N", help="new questions (default: 20, with --measure 100)")
    parser.add_argument("--measure", action="store_true", help="draw a random sample with known inclusion probabilities")
    args = parser.parse_args(argv)
    from tllib_ext.report.questions import write_questions_page
    from tllib_ext.training.answering import ask_run

    number = args.n or (100 if args.measure else 20)
    questions = ask_run(args.run, number, args.measure, write_questions_page)
    if not questions:
        print("every image is answered: there is nothing to ask")
        return 0
    again = sum(question.again for question in questions)
    more = f", {again} of them again because the answer contradicts the images around it" if again else ""
    print(f"{len(questions)} questions{more}: open {args.run}/questions.html, or fill in {args.run}/questions.csv; then")
    print(f"tllib-ext answer {args.run} answers.csv")
    return 0
