"""SQL over the rows of one metric: DuckDB as engine over Parquet files of any resolution and open segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.core.errors import DataError, UsageError
from stepscope.core.metrics import MetricKind
from stepscope.store.history.catalog import HOUR_MS, RAW, TIER_MS, StoredFile, entity_id
from stepscope.store.history.grouping import Floats, Indices
from stepscope.store.history.job_groups import TARGET, Grouping
from stepscope.store.history.parquet import load_pyarrow
from stepscope.store.history.questions import Labels, Statistic
from stepscope.store.history.resolution import COUNTER_PARTS, GAUGE_PARTS
from stepscope.store.history.stored_files import FileGoneError, HistoryFiles, HistoryState


def load_duckdb() -> ModuleType:
    """duckdb.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import duckdb
    except ImportError as error:
        raise UsageError("metric history needs duckdb", what_next='run: pip install "stepscope[history]"') from error
    return duckdb


class EngineError(Exception):
    """The engine cannot read a file."""


class Engine:
    """DuckDB without a database: threads may share it.

    Raises:
        UsageError: it is not installed.
    """

    def __init__(self) -> None:
        duckdb = load_duckdb()
        self._error: type[Exception] = duckdb.Error
        self._connection = duckdb.connect(
            ":memory:", config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
        )
        self._connection.execute("SET temp_directory = ''")

    def ask(self, sql: str, bound: Mapping[str, Any], tables: Mapping[str, Any]) -> list[NDArray[Any]]:
        """Columns of an answer.

        Args:
            bound: values of the parameters.
            tables: of pyarrow, by the name that they have in the query.

        Raises:
            EngineError: it cannot be read.
        """
        cursor = self._connection.cursor()
        try:
            for name, table in tables.items():
                cursor.register(name, table)
            return [np.ma.getdata(values) for values in cursor.execute(sql, bound).fetchnumpy().values()]
        except self._error as error:
            raise EngineError(" ".join(str(error).split())[:300]) from error
        finally:
            cursor.close()


@dataclass(frozen=True, slots=True)
class _Form:
    """How rows of each form become samples, as SQL.

    `{t}` is the time in ms, `{v}` the value, `{mean}` and so on those of lower resolution; a row without `key` is none.
    `single` is the query where nothing else is of the same series and step: it groups nothing.
    """

    raw: str
    lower: str
    key: str
    query: str
    single: str = ""


_MEANS = _Form(
    "{t} AS sampled, {v} AS value, 1.0 AS number",
    "{t} AS sampled, {mean} * {count} AS value, {count} AS number",
    "value",
    "SELECT s, k, sum(value) / sum(number) AS v FROM samples GROUP BY s, k",
    "SELECT s, k, value / number AS v FROM single",
)
_LOWEST = _Form(
    "{t} AS sampled, {v} AS value",
    "{t} AS sampled, {min} AS value",
    "value",
    "SELECT s, k, min(value) AS v FROM samples GROUP BY s, k",
    "SELECT s, k, value AS v FROM single",
)
_HIGHEST = _Form(
    "{t} AS sampled, {v} AS value",
    "{t} AS sampled, {max} AS value",
    "value",
    "SELECT s, k, max(value) AS v FROM samples GROUP BY s, k",
    "SELECT s, k, value AS v FROM single",
)
_RATES = _Form(
    "{t} AS sampled, {v} AS first, {v} AS last, {t} AS first_at, {t} AS last_at, 0.0 AS increase",
    "{t} AS sampled, {first} AS first, {last} AS last,"
    " {t} - {first_age_ms} AS first_at, {t} - {last_age_ms} AS last_at, {increase} AS increase",
    "first",
    """SELECT s, k, sum(increase + CASE WHEN before IS NULL THEN 0.0 WHEN first >= before THEN first - before
                                        ELSE first END) / ((max(last_at) - min(first_at)) / 1000.0) AS v
       FROM (SELECT s, k, first, first_at, last_at, increase,
                    lag(last) OVER (PARTITION BY s, k ORDER BY first_at) AS before FROM samples)
       GROUP BY s, k HAVING max(last_at) > min(first_at)""",
)
_NEWEST = "SELECT s, max(sampled), arg_max(value, sampled) FROM samples GROUP BY s"
_NEWEST_GAUGE = _Form("{t} AS sampled, {v} AS value", "{last_t} AS sampled, {mean} AS value", "value", _NEWEST)
_NEWEST_COUNTER = _Form(
    "{t} AS sampled, {v} AS value", "{t} - {last_age_ms} AS sampled, {last} AS value", "value", _NEWEST
)
_PRESENT = "SELECT s, k, max(sampled) FROM samples GROUP BY s, k"
_PRESENCE = _Form("{t} AS sampled, {v} AS value", "{last_t} AS sampled, nullif({count}, 0) AS value", "value", _PRESENT)
_PARTS = tuple(dict.fromkeys((*GAUGE_PARTS, *COUNTER_PARTS)))


class Scan:
    """SQL over the rows of one metric in (start, end], from files of any resolution and open segments."""

    def __init__(
        self,
        engine: Engine,
        files: HistoryFiles,
        state: HistoryState,
        metric: str,
        tiers: Sequence[str],
        start_ms: int,
        end_ms: int,
    ) -> None:
        self._engine, self._stored = engine, files
        self._metric = metric
        self._is_counter = state.entry(metric).kind is MetricKind.COUNTER
        self._tables = state.catalog.tables
        self._start_ms, self._end_ms = start_ms, end_ms
        self._files = files.of_metric(state, metric, tiers, start_ms, end_ms)
        self._rows = [
            rows for rows in state.open_rows(metric) if rows.times_ms.max() > start_ms and rows.times_ms.min() <= end_ms
        ]
        self._ids = {
            id(rows.entities): np.array([entity_id(one) for one in rows.entities], np.int64)
            for rows in {id(rows.entities): rows for rows in self._rows}.values()
        }

    def series(self) -> dict[int, Labels]:
        """Labels of all series by their number."""
        found: dict[int, Labels] = {}
        for file in self._files:
            found.update(zip(*self._stored.entities_of(file), strict=True))
        for rows in {id(rows.entities): rows for rows in self._rows}.values():
            found.update(zip(self._ids[id(rows.entities)].tolist(), rows.entities, strict=True))
        return found

    def steps(
        self, chosen: Grouping, step_ms: int, statistic: Statistic, *, in_groups: bool
    ) -> tuple[Indices, Indices, Floats]:
        """Series or group, step (from 1) and value of each step with a value."""
        form = {Statistic.MIN: _LOWEST, Statistic.MAX: _HIGHEST}.get(statistic, _MEANS)
        form = _RATES if self._is_counter else form
        outer = "SELECT s, k, v FROM ({})"
        if in_groups:
            function = {Statistic.MEAN: "avg"}.get(statistic, statistic.value)
            outer = f"SELECT g, k, {function}(v) FROM ({{}}) JOIN series USING (s) GROUP BY g, k"
        return self._run(form, chosen.ids, self._start_ms, step_ms, chosen, outer)

    def newest(self, chosen: Grouping) -> tuple[Indices, Indices, Floats]:
        """Series, time and value of the newest sample of each."""
        form = _NEWEST_COUNTER if self._is_counter else _NEWEST_GAUGE
        return self._run(form, chosen.ids, self._start_ms, self._end_ms - self._start_ms, chosen)

    def newest_of_steps(self, ids: Sequence[int], start_ms: int, step_ms: int) -> tuple[Indices, Indices, Indices]:
        """Series, step (0 and less: before the first) and time of the newest sample in each step."""
        row, step, newest = self._run(_PRESENCE, ids, start_ms, step_ms)
        return row, step, newest.astype(np.int64)

    def _run(
        self,
        form: _Form,
        ids: Sequence[int],
        start_ms: int,
        step_ms: int,
        chosen: Grouping | None = None,
        outer: str = "{}",
    ) -> tuple[Indices, Indices, NDArray[Any]]:
        single = [file for file in self._files if form.single and self._is_single(file, step_ms)]
        others = [file for file in self._files if file not in single]
        bound: dict[str, Any] = {}
        sources = {
            "single": self._parts(form, "single", single, chosen, bound),
            "samples": self._parts(form, "files", others, chosen, bound) + self._open_part(form),
        }
        queries = {"single": form.single, "samples": form.query}
        used = [name for name, parts in sources.items() if parts]
        if not used or not ids:
            return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
        tables_of_query = ", ".join(
            f"""{name} AS (
                SELECT s, (sampled - $start + $step - 1) // $step AS k, * EXCLUDE (s)
                FROM ({" UNION ALL ".join(sources[name])}) JOIN series USING (entity) WHERE {form.key} IS NOT NULL)"""
            for name in used
        )
        sql = f"WITH {tables_of_query} {outer.format(' UNION ALL '.join(queries[name] for name in used))}"
        pa, _ = load_pyarrow()
        series = {"entity": np.array(ids, np.int64), "s": np.arange(len(ids))}
        if chosen is not None and chosen.group.ndim == 1:
            series["g"] = chosen.group
        tables = {"series": pa.table(series)}
        if self._rows:
            tables["open_rows"] = self._open_table()
        try:
            first, second, third = self._engine.ask(sql, {**bound, "start": start_ms, "step": step_ms}, tables)
        except EngineError as error:  # a file that was damaged or went away meanwhile is left out at the next attempt
            if not all(self._stored.is_whole(file) for file in self._files):
                raise FileGoneError from error
            raise DataError(f"cannot be read ({error})", where=self._stored.place.location) from error
        return first, second, third

    def _is_single(self, file: StoredFile, step_ms: int) -> bool:
        """Whether a file has one row of each series and step, and nothing else has any of them."""
        return (
            TIER_MS[file.tier] == step_ms
            and all(rows.times_ms.min() > file.span_ms + file.hours * HOUR_MS for rows in self._rows)
            and all(
                one is file
                or one.table != file.table
                or one.span_ms >= file.span_ms + file.hours * HOUR_MS
                or file.span_ms >= one.span_ms + one.hours * HOUR_MS
                for one in self._files
            )
        )

    def _parts(
        self, form: _Form, name: str, files: Sequence[StoredFile], chosen: Grouping | None, bound: dict[str, Any]
    ) -> list[str]:
        """SELECT of the files of each resolution; the parameters in them are added to `bound`."""
        by_tier: dict[str, list[str]] = {}
        for file in files:
            by_tier.setdefault(file.tier, []).append(self._stored.path(file))
        column = _quoted(self._metric)
        lower = {part: _quoted(f"{self._metric}.{part}") for part in _PARTS}
        edges = f"> make_timestamptz({self._start_ms}000) AND time <= make_timestamptz({self._end_ms}000)"
        if by_tier and chosen is not None and (targets := self._targets(chosen)) is not None:
            edges += " AND instance BETWEEN $first_target AND $last_target"
            bound |= {"first_target": targets[0], "last_target": targets[1]}
        parts = []
        for tier, paths in by_tier.items():
            select = form.raw if tier == RAW else form.lower
            select = select.format(t="epoch_ms(time)", last_t="epoch_ms(last_time)", v=column, **lower)
            parts.append(f"SELECT entity, {select} FROM read_parquet(${name}_{tier}) WHERE time {edges}")
            bound[f"{name}_{tier}"] = paths
        return parts

    def _open_part(self, form: _Form) -> list[str]:
        """SELECT of the rows in segments."""
        select = form.raw.format(t="time", v="value")
        edges = f"time > {self._start_ms} AND time <= {self._end_ms}"
        return [f"SELECT entity, {select} FROM open_rows WHERE {edges}"] if self._rows else []

    def _targets(self, chosen: Grouping) -> tuple[str, str] | None:
        """First and last target of the series, where they spare most of the files: files are sorted by it."""
        if any(TARGET not in self._tables[file.table] for file in self._files):
            return None
        asked = {dict(labels).get(TARGET, "") for labels in chosen.labels}
        if 2 * len(chosen.ids) > chosen.num_series:
            return None
        return min(asked), max(asked)

    def _open_table(self) -> Any:
        pa, _ = load_pyarrow()
        return pa.Table.from_batches(
            [
                pa.record_batch(
                    {
                        "entity": self._ids[id(rows.entities)][rows.entity],
                        "time": rows.times_ms,
                        "value": pa.array(rows.columns[self._metric], from_pandas=True),
                    }
                )
                for rows in self._rows
            ]
        )


def _quoted(name: str) -> str:
    """A column's name in SQL; metrics that no file has never come here."""
    return '"' + name.replace('"', '""') + '"'
