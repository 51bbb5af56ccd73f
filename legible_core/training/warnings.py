"""What the papers saw diverge: said before a run starts, never a reason to refuse it.

of(recipe)      one sentence or two for each known danger, the gravest first
"""

from __future__ import annotations

from legible_core.training.recipe import Recipe


def of(recipe: Recipe) -> list[str]:
    """The warnings of a recipe ("Legible-by-Construction" appendix A, "Through the Looking Glass" section 5.2)."""
    return [said for said in (_both_without_plain(recipe), _few_plain(recipe), _small_minority(recipe)) if said]


def _both_without_plain(recipe: Recipe) -> str | None:
    """Appendix A.3: one of the two true divergences that the paper observed."""
    if recipe.model.gelu_fraction > 0 or recipe.feed_forward_pressure.regime != "both":
        return None
    return (
        "This run will probably diverge: a feed-forward layer without any plain unit (gelu_fraction = 0) under both "
        "pressures is one of the two designs that the papers saw truly diverge, because crispness deepens a saturation "
        "that sparsity has already begun. Use crispness alone, or keep half of the units plain."
    )


def _few_plain(recipe: Recipe) -> str | None:
    """Abstract of "Explicit Fuzzy Logic in the Feed-Forward Layer"; "Through the Looking Glass" section 5.2."""
    model = recipe.model
    if model.gelu_fraction >= 0.5 or recipe.angle.weight > 0:
        return None
    return (
        f"This run may diverge late and suddenly: {1 - model.gelu_fraction:.0%} of its feed-forward units are named "
        "operators, and above half the papers saw training diverge. Set angle.weight (the objective that made the full "
        "set-operator stack converge), or make gelu_fraction at least 0.5."
    )


def _small_minority(recipe: Recipe) -> str | None:
    """Appendix A.1 and A.2: the starved unbounded minority of membership heads."""
    model = recipe.model
    if model.value != "membership":
        return None
    linear = model.n_heads - model.n_special
    if not 0 < 2 * linear < model.n_heads:
        return None
    return (
        f"This run may diverge: in each layer {linear} of {model.n_heads} heads are unbounded beside membership heads. "
        "Such a minority has to carry all that bounded values cannot, and its writes run away (the papers' 75 % design "
        "diverged at 4 layers and at 12). Make special_fraction 1, or at most 0.5."
    )
