"""How a run can end: one member for each way, with what happened (`reason`) and what to do about it (`remedy`)."""

from __future__ import annotations

from enum import Enum


class Outcome(Enum):
    """How a run ended; `.reason` says what happened, `.remedy` what to do about it.

    >>> Outcome.TOO_FEW_EXAMPLES.reason
    'there are too few examples to settle the answer'
    >>> Outcome.TOO_FEW_EXAMPLES.remedy
    'give more examples'
    """

    RECOVERED = ("every head was recovered", "nothing to do")
    TRAINED = ("training finished", "the certificate says which guarantees hold for this run")
    COMPRESSED = (
        "a smaller layer was found, as close to its source as the certificate says",
        "a larger one comes closer",
    )
    CERTIFIED = (
        "the candidate is as close to the reference as the certificate says",
        "nothing to do",
    )
    ON_TARGET = (
        "the error is at most the target that was asked for, and the other claims are not established",
        "nothing to do; leave out the target to have every claim judged",
    )
    BELOW_NOISE_FLOOR = (
        "the outputs carry noise, and the answer is only as exact as the noise allows",
        "give cleaner outputs or more examples, or ask for less with accuracy=",
    )
    TOO_FEW_EXAMPLES = (
        "there are too few examples to settle the answer",
        "give more examples",
    )
    TOKENS_DEGENERATE = (
        "the tokens vary in too few directions, or determine each other",
        "give more varied tokens",
    )
    HEADS_INDISTINGUISHABLE = (
        "two heads, or two layers, cannot be told apart on these tokens",
        "use tokens that are independent of each other",
    )
    PROJECTIONS_CANCEL = (
        "the projections of the heads cancel in their sum",
        'use chosen queries or method="moment"',
    )
    TOO_MANY_HEADS = (
        "no row of outputs can prove that all heads agree, because m (k - 1) exceeds d_out",
        'use method="moment", chosen queries, or shorter sequences',
    )
    HEADS_UNBALANCED = (
        "one head's scores or projection are so much smaller than another's that agreement of all heads cannot be seen",
        'use method="moment" or chosen queries',
    )
    HEADS_COHERENT = (
        "the scores or the projections of two heads are nearly parallel, so that rows in which all heads agree do not "
        "tell them apart",
        'use method="moment" or chosen queries',
    )
    LOW_EFFECTIVE_RANK = (
        "a head's scores or projection have effective rank near one",
        "use chosen queries",
    )
    ATTENTION_TOO_WEAK = (
        "attention hardly differs from a plain average on these tokens",
        "use larger tokens or more examples",
    )
    SATURATED = ("attention is nearly one-hot on these tokens", "use smaller tokens")
    NOT_ATTENTION = (
        "no attention layer was found that explains the outputs",
        "check what else enters the outputs: a residual connection, positions, a normalisation; if you know the number of heads, give it",
    )
    BUDGET_SPENT = (
        "the budget of time, examples, queries or steps is used up",
        "raise it and resume from the checkpoint",
    )
    INTERRUPTED = ("the run was interrupted", "resume it from the checkpoint")
    ORACLE_FAILED = (
        "the oracle stopped answering properly",
        "mend the oracle and run again; with cache= it is not asked again what it has answered",
    )
    NUMERICAL_FAILURE = (
        "a phase produced numbers that are not finite",
        "rescale the tokens or use float64",
    )
    NOT_ESTABLISHED = (
        "not every claim of the certificate is established",
        "look at the checks of the certificate that fail",
    )

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason = reason
        """What happened."""
        self.remedy = remedy
        """What the user can do about it."""

    @property
    def ended_well(self) -> bool:
        """Whether a run that ended so can be certified."""
        return self in (Outcome.RECOVERED, Outcome.TRAINED, Outcome.COMPRESSED, Outcome.CERTIFIED)

    def to_json(self) -> str:
        """The name, by which results are stored."""
        return self.name

    def __str__(self) -> str:
        return self.name
