"""The chat template that rows are rendered with. It is found where rows are prepared; here it is named, always."""

from loradock.plan.context import Context
from loradock.plan.plan import Decision


def decide(context: Context) -> Decision[str]:
    """As the rows were rendered, and where the template comes from."""
    name, origin = context.data.template
    return Decision(name="template", value=name, why=origin)
