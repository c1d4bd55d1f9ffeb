"""The judgement of what processes say of themselves: which one is gone, silent or late, in words and by exit code."""

from __future__ import annotations

from loradock.distributed.failure import LEAVING_SECONDS, SUSPECT_SECONDS, Heard, Report, judged
from loradock.errors import Diverged, EnvironmentUnfit, Hung, Interrupted


def heard(rank: int, *, unheard: float = 0.0, ended: float = 0.0, host: str = "b", **more: object) -> Heard:
    report = Report(rank=rank, host=host, **{"phase": "step", "step": 7, **more})  # type: ignore[arg-type]
    return Heard(report=report, unheard_seconds=unheard, ended_seconds=ended)


def test_all_goes_well_while_reports_come() -> None:
    fine = [heard(0), heard(1, unheard=4), heard(2, code=0, unheard=99)]
    assert judged(fine, me=0, limit_seconds=5) is None
    assert judged([heard(0), heard(1, unheard=1e6)], me=0, limit_seconds=0) is None, "0 is for ever"
    assert judged([heard(0, unheard=99), heard(1)], me=0, limit_seconds=5) is None, "its own report counts for nothing"


def test_silence_names_all_of_the_host_that_is_silent_for_longest() -> None:
    silent = [heard(0, host="a"), heard(1, unheard=6), heard(2, unheard=7), heard(3, unheard=6, host="c")]
    error = judged(silent, me=0, limit_seconds=5)
    assert isinstance(error, Hung)
    assert "from ranks 1, 2 on b for 7 s (limit 5 s)" in error.what
    assert "--set limits.peer_seconds=10" in str(error.hint)


def test_a_broken_connection_is_blamed_on_the_one_that_is_silent_after_a_few_seconds() -> None:
    seen = [heard(0), heard(1, unheard=SUSPECT_SECONDS + 0.1), heard(2, unheard=1)]
    assert judged(seen, me=0, limit_seconds=300) is None
    error = judged(seen, me=0, limit_seconds=300, is_cut_off=True)
    assert isinstance(error, EnvironmentUnfit)
    assert "rank 1 on b" in error.what


def test_an_end_is_waited_for_before_it_is_taken_over() -> None:
    """This process is probably on its way out, too, for the same reason."""
    ending = {"code": Diverged.exit_code, "what": "the loss is nan"}
    assert judged([heard(0), heard(1, ended=1, **ending)], me=0, limit_seconds=5) is None
    error = judged([heard(0), heard(1, ended=LEAVING_SECONDS, **ending)], me=0, limit_seconds=5)
    assert isinstance(error, Diverged)
    assert "rank 1 on b, after step 7: the loss is nan" in error.what


def test_where_no_step_was_made_it_is_said_what_was_done_instead() -> None:
    killed = {"step": 0, "code": 137, "what": "was killed by SIGKILL", "ended": LEAVING_SECONDS}
    for phase, doing in (("setup", "while setting up"), ("step", "in its first step")):
        error = judged([heard(0), heard(1, phase=phase, **killed)], me=0, limit_seconds=5)
        assert error
        assert (
            error.what
            == f"another rank of this run has ended: rank 1 on b, last heard of {doing}: was killed by SIGKILL"
        )
        assert error.exit_code == 137, "as the launcher, which ends with that of the one that is to blame"
    error = judged([heard(0), heard(1, phase="setup", step=0, unheard=6)], me=0, limit_seconds=5)
    assert error
    assert error.what.endswith("its last report: setting up")
    late = [heard(0, step=0, waiting_seconds=6), heard(1, step=0, quiet_seconds=9)]
    error = judged(late, me=0, limit_seconds=5)
    assert error
    assert "made no progress for 9 s in its first step, and the others wait" in error.what


def test_what_another_one_was_told_is_told_on_as_it_was_unless_the_culprit_says_it_itself() -> None:
    told = heard(1, code=82, what="rank 2 is silent", is_told=True)
    error = judged([heard(0), told, heard(2)], me=0, limit_seconds=5)
    assert isinstance(error, Hung)
    assert error.what == "rank 2 is silent"
    own = heard(2, code=76, what="stopped by SIGTERM", ended=LEAVING_SECONDS)
    error = judged([heard(0), told, own], me=0, limit_seconds=5)
    assert isinstance(error, Interrupted)


def test_one_that_the_others_wait_for_is_late_and_where_all_wait_the_network_is() -> None:
    waits = heard(0, waiting_seconds=6, quiet_seconds=6)
    assert judged([waits, heard(1, quiet_seconds=4)], me=0, limit_seconds=5) is None
    assert judged([waits, heard(1, quiet_seconds=9, phase="save")], me=0, limit_seconds=5) is None
    error = judged([waits, heard(1, quiet_seconds=9)], me=1, limit_seconds=5)
    assert isinstance(error, Hung)
    assert "rank 1 on b made no progress for 9 s after step 7" in error.what
    just_came = heard(1, waiting_seconds=0.3)
    assert judged([waits, just_came], me=1, limit_seconds=5) is None, "the report of rank 0 is from before they met"
    error = judged([waits, heard(1, waiting_seconds=9)], me=0, limit_seconds=5)
    assert isinstance(error, Hung)
    assert "all ranks have waited for each other for 6 s" in error.what
