"""Speculation: tokens are guessed cheaply and verified several at a time, in a step that costs little more than one.

What comes out is drawn from the rows it would have been drawn from anyway, by the request's own sampler, so guesses
decide about speed and about nothing else.
"""

from ggfw.speculation.draft import DraftModel
from ggfw.speculation.speculator import MODES, RECURRENT_DRAFTS, Speculator, Track, check_spec

__all__ = ["MODES", "RECURRENT_DRAFTS", "DraftModel", "Speculator", "Track", "check_spec"]
