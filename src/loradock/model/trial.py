"""tokenizer.json opened and tried by a process of its own: what it does to that process, it would do to the run.

A normaliser, a padding or a vocabulary can make the library abort (SIGABRT), take all memory, or never end, and none of
that is an exception that could be caught.
"""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from loradock.errors import EnvironmentUnfit, ModelError
from loradock.process import python

SECONDS, SECONDS_A_MEBIBYTE = 20, 1
MEMORY_BYTES, MEMORY_BYTES_A_BYTE = 512 << 20, 64
"""Of address space, beyond what the interpreter has. A vocabulary of 256,000 (32 MiB) takes 2 s and 0.4 GiB."""
MOST_IDS = 10_000
"""Of one letter. Some files pad to 512, which a run switches off."""
REFUSED, BROKE, ABSENT = 3, 4, 5
PROGRAM = """
import resource, sys
file, seconds, more_bytes, most_ids, refused, broke, absent = sys.argv[1], *map(int, sys.argv[2:])
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
try:
    from tokenizers import Tokenizer
except Exception as error:
    print(f'{type(error).__name__}: {error}'[:2000]); sys.exit(absent)
own = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (own + more_bytes,) * 2)
try:
    made = Tokenizer.from_file(file)
    ids = max(len(made.encode('a', add_special_tokens=add).ids) for add in (False, True))
    if ids > most_ids:
        raise Exception(f'it makes {ids:,} tokens of one letter')
    texts = ['', 'A row, its 2nd line\\n  and.', '  two  spaces \\u00e9 \\u65e5\\u672c \\U0001f642', 'aA1 ' * 999]
    for text in texts:
        for add in (False, True):
            made.decode(made.encode(text, add_special_tokens=add).ids)
except Exception as error:
    print(str(error)[:2000]); sys.exit(refused)
except BaseException as error:
    print(str(error)[:2000]); sys.exit(broke)
"""


def check(file: Path) -> None:
    """Open and try it apart. ModelError with what the library said, or with how that process ended."""
    size_mebibytes = file.stat().st_size / (1 << 20)
    seconds = int(SECONDS + SECONDS_A_MEBIBYTE * size_mebibytes)
    more_bytes = MEMORY_BYTES + MEMORY_BYTES_A_BYTE * file.stat().st_size
    limits = [str(each) for each in (seconds, more_bytes, MOST_IDS, REFUSED, BROKE, ABSENT)]
    command = python.command("-c", PROGRAM, str(file), *limits)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=20 * seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise _refusal(file, f"does not open within {error.timeout:.0f} s") from error
    except OSError as error:
        raise EnvironmentUnfit(f"no process could be started: {error}", hint="free memory or processes") from error
    if not done.returncode:
        return
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    words = lines[-1 if lines[0].startswith("Traceback") else 0][:300] if lines else ""
    if done.returncode == ABSENT:
        hint = "loradock env-check --only packages says what is installed otherwise than as locked"
        raise EnvironmentUnfit(f"tokenizers cannot be imported: {words}", hint=hint)
    if done.returncode == REFUSED:
        raise _refusal(file, f"cannot be read: {words}")
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise _refusal(file, f"takes more than {seconds} s of CPU time to open and try")
    if done.returncode == BROKE:
        raise _refusal(file, f"makes the tokenizers library panic: {words}")
    by = signal.Signals(-done.returncode).name if done.returncode < 0 else f"code {done.returncode}"
    raise _refusal(file, f"ends the process that opens it ({by}): {words}")


def _refusal(file: Path, what: str) -> ModelError:
    return ModelError(f"the tokenizer in {file} {what}", hint="copy tokenizer.json again")
