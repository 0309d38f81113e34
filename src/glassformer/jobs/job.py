"""A job: a file of rows in, a file of answers out, in the order of the rows; and nothing is lost on the way.

Answers go to a ledger beside the output as rows finish, and the output is written from it at the end, as a whole. A job that
was killed goes on from its ledger: every row is answered once, with the answer that an unbroken run gives.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glassformer.ground.arguments import checked
from glassformer.ground.errors import GlassError, InputError, SettingError
from glassformer.ground.files import atomic_file
from glassformer.ground.typecheck import brief
from glassformer.jobs.engines import JobPlan, LocalEngine, RowEngine
from glassformer.jobs.formats.openai_batch import OpenAIBatch
from glassformer.jobs.formats.row_format import InputRow, PlainRows, RowFormat, RowId
from glassformer.jobs.input_rows import JSON_SUFFIXES, InputFile, LinesFile, row_problem
from glassformer.jobs.ledger import Ledger
from glassformer.page.format import to_json
from glassformer.runtime.model import Model
from glassformer.see.tensor_files import differences
from glassformer.tasks.task import Task

LEDGER_SUFFIX = ".ledger"
OUTPUT_SUFFIXES = (*JSON_SUFFIXES, ".parquet")


@dataclass(frozen=True)
class JobProgress:
    """How far a job is."""

    rows: int  # that are finished, those of earlier runs too
    total: int
    failed: int  # among the finished
    tokens: int  # generated in this run; read, where nothing is generated


@dataclass(frozen=True)
class JobSummary:
    """What became of a job."""

    output: Path
    rows: int
    failed: int
    resumed: int  # rows that an earlier run had finished
    prompt_tokens: int
    completion_tokens: int
    seconds: float  # of this run

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "output": str(self.output), "seconds": round(self.seconds, 3)}


@checked
def run_job(
    model_or_task: Model | Task,
    file: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    batch_size: int | None = None,
    progress: Callable[[JobProgress], None] | None = None,
    **keywords: Any,
) -> JobSummary:
    """Answer every row of a file. Run it again after any interruption, and it resumes.

    Args:
        model_or_task: a model from `load`, or a task from `pipeline`.
        file: .jsonl or .parquet, with a prompt, messages or token ids in each row, or OpenAI's batch requests; any other
            file has a text on each line.
        out: .jsonl or .parquet. Its ledger lies beside it, with `.ledger` after its name.
        batch_size: texts that are written together; by default the task's own, or 32.
        progress: called as rows and tokens come.
        keywords: prompt options and settings for every row, as `Model.chat` takes them; a row's own come on top.
    """
    return answer_file(LocalEngine(model_or_task, keywords, run_job), file, out, batch_size=batch_size, progress=progress)


def answer_file(
    engine: RowEngine,
    file: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    batch_size: int | None = None,
    progress: Callable[[JobProgress], None] | None = None,
) -> JobSummary:
    """`run_job` with any engine."""
    if batch_size is not None and batch_size < 1:
        raise SettingError(f"batch_size is {batch_size}; it must be at least 1.")
    source_path, target = Path(file).expanduser(), Path(os.path.realpath(Path(out).expanduser()))
    if target.suffix not in OUTPUT_SUFFIXES:
        raise InputError(f"{Path(out)} must end in one of: {', '.join(OUTPUT_SUFFIXES)}.")
    if target.suffix == ".parquet":
        from glassformer.jobs.formats.parquet import import_pyarrow

        import_pyarrow()  # or refuse, before anything runs
    with closing(open_input(source_path)) as source:
        if target.exists() and target.samefile(source_path):
            raise InputError(f"{Path(out)} is the input. Choose another output file.")
        engine.start()
        return _Job(engine, source, target).run(batch_size, progress)


def open_input(path: Path) -> InputFile:
    """A file of rows, read as its suffix says."""
    if path.suffix == ".parquet":
        from glassformer.jobs.formats.parquet import ParquetInput

        return ParquetInput(path)
    return LinesFile(path, as_json=path.suffix in JSON_SUFFIXES)


class _Job:
    """One run of a job."""

    def __init__(self, engine: RowEngine, source: InputFile, target: Path) -> None:
        self.engine = engine
        self.source = source
        self.target = target
        self.total = source.count()
        self.totals = {"failed": 0, "prompt_tokens": 0, "completion_tokens": 0}  # of the finished rows
        first = next((value for value in source.values() if isinstance(value, Mapping)), None)
        self.row_format: type[RowFormat] = OpenAIBatch if OpenAIBatch.recognizes(first) else PlainRows
        if self.row_format is OpenAIBatch and target.suffix == ".parquet":
            raise InputError("OpenAI's batch format is lines of JSON. Choose an output file that ends in .jsonl.")

    def run(self, batch_size: int | None, progress: Callable[[JobProgress], None] | None) -> JobSummary:
        started = time.perf_counter()
        fingerprint = {"input": self.source.digest(), **self.engine.fingerprint()}
        ledger_path = self.target.with_name(self.target.name + LEDGER_SUFFIX)
        if not ledger_path.exists():
            self._refuse_overwriting()
        with Ledger(ledger_path) as ledger:
            self._resume(ledger, fingerprint)
            resumed = len(ledger)
            for record in ledger.records():
                self._add(record)
            if resumed < self.total:
                self._answer(ledger, batch_size, progress)
                self.source.check_unchanged()
                ledger.sync()
            if resumed < self.total or not self.target.exists():
                self._write_output(ledger)
        return JobSummary(self.target, self.total, resumed=resumed, seconds=time.perf_counter() - started, **self.totals)

    def _resume(self, ledger: Ledger, fingerprint: Mapping[str, Any]) -> None:
        """Begin the ledger, or refuse to go on with one of another job."""
        if ledger.header is None:
            self._refuse_overwriting()
            seed = secrets.randbits(32) if self.engine.seed is None else self.engine.seed
            ledger.start({"job": fingerprint, "seed": seed, "created": int(time.time())})
            return
        if changes := differences(ledger.header["job"], fingerprint):
            raise InputError(
                f"{self.target.name} was begun as another job: {'; '.join(changes)}. "
                f"Run it as it was begun, or remove {ledger.path} to begin anew."
            )
        if len(ledger) < self.total:
            self._refuse_overwriting()

    def _refuse_overwriting(self) -> None:
        if self.target.exists():
            raise InputError(f"{self.target} exists already, and is not of this job. Remove it, or choose another.")

    def _answer(self, ledger: Ledger, batch_size: int | None, progress: Callable[[JobProgress], None] | None) -> None:
        """Answer the rows that are not in the ledger."""
        assert ledger.header is not None
        tokens = 0

        def count_tokens(count: int) -> None:
            nonlocal tokens
            tokens += count
            if progress is not None:
                progress(JobProgress(len(ledger), self.total, self.totals["failed"], tokens))

        count_tokens(0)
        header = ledger.header
        plan = JobPlan(self.row_format.name, self.total, header["seed"], header["created"], batch_size)
        records = self.engine.records(_rows(self.source, self.row_format), ledger, plan, count_tokens)
        with closing(records):
            for index, record in records:
                self._add(record)
                ledger.append(index, record)
                count_tokens(0)

    def _add(self, record: Mapping[str, Any]) -> None:
        """Count a finished row."""
        for name in self.totals:
            self.totals[name] += record[name]

    def _write_output(self, ledger: Ledger) -> None:
        def rows() -> Iterator[dict[str, Any]]:
            return (record["output"] for record in ledger.records())

        with atomic_file(self.target) as part:
            if self.target.suffix == ".parquet":
                from glassformer.jobs.formats.parquet import write_parquet

                write_parquet(part, rows)
                return
            with part.open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(f"{to_json(row)}\n" for row in rows())


def _rows(source: InputFile, row_format: type[RowFormat]) -> Iterator[InputRow]:
    """The rows with their ids, each of which must be a row's own."""
    ids = set()
    for index, value in enumerate(source.values()):
        row_id: RowId = index
        if isinstance(value, GlassError):
            yield InputRow(index, row_id, None, value)
            continue
        problem: GlassError | None = row_problem(value)
        held = value if problem is None else None
        try:
            given_id = row_format.id_of(value)
            row_id = index if given_id is None else given_id
            if row_id in ids:
                raise InputError(f"the id {brief(row_id)} is that of an earlier row. Give it another.")
            ids.add(row_id)
        except GlassError as error:
            problem = problem or error
        yield InputRow(index, row_id, held, problem)
