"""Problems of a request in one line: for a table, or a file that holds many of them."""

from harness.errors import BadRequestError, ManyProblemsError
from harness.records.redact import redact_shapes


def in_one_sentence(problem: BadRequestError) -> str:
    """``what is wrong (what to do)``; several problems one after the other, secrets masked."""
    if isinstance(problem, ManyProblemsError):
        return "; ".join(in_one_sentence(one) for one in problem.problems)
    return redact_shapes(f"{problem.message} ({problem.remedy})" if problem.remedy else problem.message)
