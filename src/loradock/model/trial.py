"""tokenizer.json opened and tried by a process of its own: what it does to that process, it would do to the run.

A normaliser, a padding or a vocabulary can make the library abort (SIGABRT), take all memory, or never end, and none of
that is an exception that could be caught.
"""

from __future__ import annotations

from pathlib import Path

from loradock.errors import EnvironmentUnfit, ModelError
from loradock.process import apart

SECONDS, SECONDS_A_MEBIBYTE = 20, 1
MEMORY_BYTES, MEMORY_BYTES_A_BYTE = 512 << 20, 64
"""Of address space, beyond what the interpreter has. A vocabulary of 256,000 (32 MiB) takes 2 s and 0.4 GiB."""
MOST_IDS = 10_000
"""Of one letter. Some files pad to 512, which a run switches off."""
REFUSED, BROKE, ABSENT = 3, 4, 5
PROGRAM = """
file, most_ids, refused, broke, absent = arguments[0], *map(int, arguments[1:])
try:
    from tokenizers import Tokenizer
except Exception as error:
    print(f'{type(error).__name__}: {error}'[:2000]); sys.exit(absent)
limit_memory()
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
    limits = map(str, (MOST_IDS, REFUSED, BROKE, ABSENT))
    ended = apart.run(PROGRAM, str(file), *limits, seconds=seconds, more_bytes=more_bytes)
    if not ended.code:
        return
    lines = [line.strip() for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
    message = lines[-1 if lines[0].startswith("Traceback") else 0][:300] if lines else ""
    if ended.code == ABSENT:
        hint = "loradock env-check --only packages says what is installed otherwise than as locked"
        raise EnvironmentUnfit(f"tokenizers cannot be imported: {message}", hint=hint)
    if ended.code == REFUSED:
        raise _refusal(file, f"cannot be read: {message}")
    if ended.is_endless:
        raise _refusal(file, f"takes more than {seconds} s of CPU time to open and try")
    if ended.code == BROKE:
        raise _refusal(file, f"makes the tokenizers library panic: {message}")
    raise _refusal(file, f"ends the process that opens it ({ended.ending}): {message}")


def _refusal(file: Path, what: str) -> ModelError:
    return ModelError(f"the tokenizer in {file} {what}", hint="copy tokenizer.json again")
