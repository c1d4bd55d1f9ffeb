"""What is due after a step (logging, evaluation, saving, the end), as the trainer is told of it."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from loradock.training.cadence import Flow
from loradock.training.job import Emit, StepDone


class Cadence(TrainerCallback):
    """Tells the trainer what is due after each step."""

    def __init__(self, flow: Flow, emit: Emit) -> None:
        self.flow = flow
        self.emit = emit

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Set the flags of the step that ended."""
        self.emit(StepDone(step=state.global_step))
        due = self.flow.after(state.global_step)
        control.should_log, control.should_evaluate, control.should_save = due.log, due.evaluate, due.save
        if self.flow.stopped_by:
            control.should_training_stop = True
        return control
