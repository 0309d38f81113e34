"""The models of a server: by name and alias, loaded when first asked for, unloaded when nobody has used them for a while.

A request names a model of this registry or none: nothing that a client sends becomes a path or a download.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from glassformer.checkpoint.gguf import GgufCheckpoint
from glassformer.ground.errors import (
    CheckpointError,
    GlassError,
    InputError,
    ModelNotFound,
    QueueFull,
    Unavailable,
    did_you_mean,
)
from glassformer.ground.progress import NamedProgress
from glassformer.model_files import ModelFiles
from glassformer.runtime.model import Model
from glassformer.runtime.weights import InMemory
from glassformer.serving.limits import Limits
from glassformer.serving.scheduler import Event, Scheduler
from glassformer.steering.library import Library

Deliver = Callable[[Sequence[Event]], None]
log = logging.getLogger("glassformer")
MAX_ALIASES = 256  # of all models, which clients may add
STOPPING = "the server is stopping, and takes no more requests."


@dataclass(frozen=True)
class ModelFacts:
    """What a model's files say of it, before it is loaded; empty where it is not known."""

    bytes: int = 0  # of its weights, as they are stored
    parameters: int = 0
    family: str = ""
    kind: str = ""  # what its weights are stored in
    format: str = ""  # gguf or safetensors


def facts_of(opened: ModelFiles | InMemory) -> ModelFacts:
    """The facts of a model; of one that cannot be read none, as who asks for it will hear why."""
    if isinstance(opened, InMemory):
        return ModelFacts(family=opened.config.model_type, kind=opened.kind)
    try:
        tensors = opened.tensors.values()
        return ModelFacts(
            bytes=sum(tensor.size for tensor in tensors),
            parameters=opened.blueprint().parameters,
            family=opened.config.model_type,
            kind=opened.kind_text,
            format="gguf" if isinstance(opened.checkpoint, GgufCheckpoint) else "safetensors",
        )
    except GlassError:
        return ModelFacts()


@dataclass(frozen=True)
class ModelSource:
    """A model that can be asked for."""

    name: str
    load: Callable[[], Model]
    aliases: tuple[str, ...] = ()
    library: Library = field(default_factory=Library)  # the steering vectors and features that clients can name
    created: int = field(default_factory=lambda: int(time.time()))  # as clients list it: when the server learnt of it
    fetched_as: str | None = None  # its name in the catalogue or on the hub; None for a path of the operator's own
    facts: ModelFacts = field(default_factory=ModelFacts)  # what is known of it before it is loaded
    own_head: bool = False  # whether its own head for further tokens drafts


Pull: TypeAlias = Callable[[str, NamedProgress], ModelSource]


@dataclass(frozen=True)
class Permissions:
    """What clients may do beyond asking models; by default only what leaves nothing behind."""

    pull: Pull | None = None  # fetches a model by its name in the catalogue or on the hub
    delete: bool = False  # models, from the disk too; and give them further names
    files: bool = True  # leave files and have batches answered, until the server stops
    store_responses: bool = False  # keep answers of /v1/responses, so that requests can go on from them


@dataclass(eq=False)
class ServedModel:
    """A loaded model and its scheduler."""

    source: ModelSource
    model: Model
    scheduler: Scheduler
    users: int = 0  # requests in progress
    last_used: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        return self.source.name


class Registry:
    """Thread-safe; a model is loaded by the thread that asks for it first, and others that ask for it wait."""

    def __init__(self, sources: Sequence[ModelSource], limits: Limits | None = None) -> None:
        if not sources:
            raise ModelNotFound("a server needs a model. Name one.")
        self.limits = limits or Limits()
        self.sources: dict[str, ModelSource] = {}
        self._by_alias: dict[str, ModelSource] = {}
        for source in sources:
            for name in (source.name, *source.aliases):
                if name in self._by_alias:
                    raise ModelNotFound(f"two models are called {name!r}. Give one of them an alias of its own.")
                self._by_alias[name] = source
            self.sources[source.name] = source
        self._deliver: Deliver = lambda events: None
        self.tell_loaded: Callable[[Sequence[str]], None] = lambda names: None  # called when models come and go
        self._lock = threading.Lock()
        self._served: dict[str, ServedModel] = {}
        self._loading = threading.Lock()  # one model at a time, so that no more are loaded than may be
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the server is stopping."""
        return self._closed

    @property
    def default(self) -> ModelSource:
        """The first, for requests that name none."""
        return next(iter(self.sources.values()))

    @property
    def names(self) -> frozenset[str]:
        """All names and aliases."""
        return frozenset(self._by_alias)

    def deliver_to(self, deliver: Deliver) -> None:
        """Who gets the events of all schedulers."""
        self._deliver = deliver

    def source(self, name: str | None) -> ModelSource:
        """A model by its name or an alias."""
        if name is None:
            return self.default
        if (source := self._by_alias.get(name)) is None:
            hint = did_you_mean(name, self._by_alias)
            raise ModelNotFound(f"there is no model {name!r} here.{hint} There are: {', '.join(self.sources)}.")
        return source

    def add(self, source: ModelSource) -> None:
        """Offer a further model, unless one of its name is offered already."""
        with self._lock:
            if source.name not in self._by_alias:
                self.sources[source.name] = self._by_alias[source.name] = source

    def copy(self, name: str, alias: str) -> None:
        """Give a model a further name."""
        source = self.source(name)
        with self._lock:
            if alias in self._by_alias:
                raise InputError(f"there is a model {alias!r} already. Choose another name.")
            if sum(len(each.aliases) for each in self.sources.values()) >= MAX_ALIASES:
                raise InputError(f"models have {MAX_ALIASES} further names already, and no more may be. Delete one.")
            copied = replace(source, aliases=(*source.aliases, alias))
            self.sources[source.name] = copied
            self._by_alias |= dict.fromkeys((copied.name, *copied.aliases), copied)

    def remove(self, name: str) -> ModelSource | None:
        """Offer a model no more, and unload it; returns it, or None where `name` was only a further name of it."""
        source = self.source(name)
        with self._lock:
            if name != source.name:
                left = replace(source, aliases=tuple(alias for alias in source.aliases if alias != name))
                del self._by_alias[name]
                self.sources[source.name] = left
                self._by_alias |= dict.fromkeys((left.name, *left.aliases), left)
                return None
            if len(self.sources) == 1:
                raise InputError(f"{name} is the last model here, and a server needs one. Pull another first.")
            if (served := self._served.get(name)) is not None and served.users:
                raise InputError(f"{name} is in use. Try again later.")
            self._served.pop(name, None)
            del self.sources[name]
            for each in (source.name, *source.aliases):
                del self._by_alias[each]
        if served is not None:
            served.scheduler.close()
            self._tell()
        return source

    def served(self) -> Mapping[str, ServedModel]:
        """The models that are loaded, by name."""
        with self._lock:
            return dict(self._served)

    def acquire_loaded(self, name: str | None) -> ServedModel | None:
        """A model for a request, if it is loaded; without waiting for anybody."""
        source = self.source(name)
        with self._lock:
            if self._closed:
                raise Unavailable(STOPPING)
            if (served := self._served.get(source.name)) is not None:
                served.users += 1
            return served

    def acquire(self, name: str | None) -> ServedModel:
        """A model for a request, which must `release` it; loads it if need be."""
        source = self.source(name)
        if (served := self.acquire_loaded(source.name)) is not None:
            return served
        with self._loading:
            if (served := self.acquire_loaded(source.name)) is not None:  # somebody else has loaded it meanwhile
                return served
            self._make_room()
            model = self._load(source)
            if model.writes:
                _ = model.executor.describe()  # its weights are read now, not by the thread of the first request
            limits = self.limits.scheduler
            scheduler = Scheduler(model, lambda events: self._deliver(events), limits, source.own_head)
            served = ServedModel(source, model, scheduler, users=1)
            with self._lock:
                closed = self._closed
                if not closed:
                    self._served[source.name] = served
            if closed:
                served.scheduler.close()
                raise Unavailable(STOPPING)
            self._tell()
            return served

    def _tell(self) -> None:
        self.tell_loaded(list(self.served()))

    @staticmethod
    def _load(source: ModelSource) -> Model:
        """A model under the name that clients know; where it lies, and what is wrong with it there, is for the log."""
        try:
            return source.load().with_name(source.name).with_library(source.library)
        except GlassError as error:
            log.warning(f"{source.name} cannot be loaded: {error}")
            raise CheckpointError(f"{source.name} cannot be loaded; the server's log says why.") from error

    def release(self, served: ServedModel) -> None:
        with self._lock:
            served.users -= 1
            served.last_used = time.monotonic()

    @contextmanager
    def use(self, name: str | None) -> Iterator[ServedModel]:
        """`acquire` and `release`."""
        served = self.acquire(name)
        try:
            yield served
        finally:
            self.release(served)

    def unload_idle(self, seconds: float | None = None) -> list[str]:
        """Unload what nobody has used for so long, by default for `limits.idle_seconds`; returns the names."""
        before = time.monotonic() - (self.limits.idle_seconds if seconds is None else seconds)
        with self._lock:
            idle = [served for served in self._served.values() if not served.users and served.last_used <= before]
            for served in idle:
                del self._served[served.name]
        for served in idle:
            served.scheduler.close()
        if idle:
            self._tell()
        return [served.name for served in idle]

    def close(self, seconds: float = 0) -> None:
        """Let running texts go on for so long, end the others with an error, and unload everything."""
        with self._lock:
            self._closed = True
            served, self._served = list(self._served.values()), {}
        closing = [threading.Thread(target=each.scheduler.close, args=(seconds,)) for each in served]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()

    def _make_room(self) -> None:
        """Unload the model that has been idle for longest where as many are loaded as may be."""
        with self._lock:
            if len(self._served) < self.limits.loaded_models:
                return
            idle = [served for served in self._served.values() if not served.users]
            if not idle:
                raise QueueFull(f"{len(self._served)} models are loaded and in use, and no more may be. Try again later.")
            oldest = min(idle, key=lambda served: served.last_used)
            del self._served[oldest.name]
        oldest.scheduler.close()
