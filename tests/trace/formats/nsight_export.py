"""Writer of SQLite exports with the tables of Nsight Systems, from a trace that torch.profiler recorded."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from stepscope.trace.columns import NONE, Category, Numbered, TraceColumns

TABLES = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT NOT NULL",
    "TARGET_INFO_SYSTEM_ENV": "globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER, value TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "TARGET_INFO_GPU": (
        "vmId INTEGER, id INTEGER NOT NULL, name TEXT, busLocation TEXT, smCount INTEGER, totalMemory INTEGER, "
        "computeMajor INTEGER, computeMinor INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
        "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL, "
        "shortName INTEGER NOT NULL, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, "
        "blockZ INTEGER, registersPerThread INTEGER, staticSharedMemory INTEGER, dynamicSharedMemory INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
        "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL, "
        "copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
        "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, value INTEGER, bytes INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER, "
        "correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL"
    ),
    "NVTX_EVENTS": (
        "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, "
        "color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER"
    ),
}
"""Columns as in NVIDIA's "SQLite Export Schema Reference"."""
_COPY_KINDS = {"HtoD": 1, "DtoH": 2, "DtoD": 8}
_MEMORY_KINDS = {"Pageable": 1, "Pinned": 2, "Device": 3}


def write_export(path: Path, traces: Sequence[TraceColumns], *, process: int = 4711) -> None:
    """Write what Nsight Systems would have recorded of the processes of these traces."""
    base_ns = min(int(trace.start_ns.min()) for trace in traces)
    with closing(sqlite3.connect(path)) as database:
        for table, columns in TABLES.items():
            database.execute(f"CREATE TABLE {table} ({columns})")
        texts: Numbered[str] = Numbered()
        for place, trace in enumerate(traces):
            _write_process(database, trace, texts, base_ns, process + place)
            for device in trace.header.devices[:1]:
                row = (0, device.index, device.name, "", device.num_sms, device.memory_bytes, *(9, 0))
                database.execute("INSERT INTO TARGET_INFO_GPU VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", [(number, text) for text, number in texts.items()])
        database.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, '', '')", (base_ns,))
        database.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (0, '', 'Hostname', 0, 'node7')")
        database.commit()


def _write_process(
    database: sqlite3.Connection, trace: TraceColumns, texts: Numbered[str], base_ns: int, process: int
) -> None:
    global_process = 1 << 56 | process << 24
    for row in range(len(trace)):
        start, end = int(trace.start_ns[row]) - base_ns, int(trace.end_ns[row]) - base_ns
        category, lane = Category(int(trace.category[row])), trace.lanes[int(trace.lane[row])]
        name, number = trace.names[int(trace.name[row])], int(trace.correlation[row])
        device = (start, end, lane.process, 1, lane.thread, number, global_process)
        thread = global_process | lane.thread & 0xFFFFFF
        if category is Category.KERNEL:
            sizes: tuple[int | None, ...] = (None,) * 9
            if trace.launch[row] != NONE:
                launch = trace.launches[int(trace.launch[row])]
                sizes = (*launch.grid, *launch.block, launch.registers_per_thread, launch.shared_memory_bytes, 0)
            _insert(database, "KERNEL", (*device, texts[name], texts[name], *sizes))
        elif category is Category.MEMCPY:
            words = name.replace("(", "").replace(")", "").split()
            ends = (_COPY_KINDS[words[1]], _MEMORY_KINDS[words[2]], _MEMORY_KINDS[words[4]])
            _insert(database, "MEMCPY", (*device, int(trace.num_bytes[row]), *ends))
        elif category is Category.MEMSET:
            _insert(database, "MEMSET", (*device, 0, int(trace.num_bytes[row])))
        elif category is Category.RUNTIME:
            _insert(database, "RUNTIME", (start, end, 0, thread, number, texts[f"{name}_v7000"], 0))
        elif category in (Category.CPU_OP, Category.USER_ANNOTATION):
            shapes = int(trace.shapes[row])
            if category is Category.CPU_OP:
                sizes_text = "" if shapes == NONE else f", sizes = {trace.shape_table[shapes].input_dims or '[]'}"
                name = f"{name}, op_id = {row}{sizes_text}"
            name = name.replace("ProfilerStep#", "step ")
            by_number = row % 2 == 0
            text, text_id = (None, texts[name]) if by_number else (name, None)
            values = (start, end, 59, None, None, None, text, thread, None, text_id, 0)
            database.execute(f"INSERT INTO NVTX_EVENTS VALUES ({', '.join('?' * 11)})", values)


def _insert(database: sqlite3.Connection, kind: str, values: Sequence[object]) -> None:
    marks = ", ".join("?" * len(values))
    database.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_{kind} VALUES ({marks})", tuple(values))
