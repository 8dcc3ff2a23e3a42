"""Claims about a frozen layer, each from examples that nothing has touched before; docs/certificates.md has the theorem."""

from attnlearn.solve.certification._certify import certify
from attnlearn.solve.certification._function import function_claim
from attnlearn.solve.certification._position import Position, measure_position
from attnlearn.solve.certification._rivals import Opinion, Rival, second_opinion

__all__ = ["Opinion", "Position", "Rival", "certify", "function_claim", "measure_position", "second_opinion"]
