"""Made by tools/operation_texts.py."""

from glassformer.see.circuits import circuits as _circuits
from glassformer.see.explain.compute import explain_answer as _explain
from glassformer.see.features import dictionary as _dictionary
from glassformer.see.features import train_features as _train_features
from glassformer.see.journey.compute import look as _look
from glassformer.see.lens import load_lens as _load_lens
from glassformer.see.model_description import sites as _sites
from glassformer.see.parameters import parameters as _parameters
from glassformer.see.patching.operations import attribution_patch as _attribution_patch
from glassformer.see.patching.operations import patch as _patch
from glassformer.see.patching.operations import patch_pairs as _patch_pairs
from glassformer.see.patching.operations import patch_path as _patch_path
from glassformer.see.probes import load_probes as _load_probes
from glassformer.see.reading import read as _read
from glassformer.see.reading import read_ids as _read_ids
from glassformer.see.readings import read_many as _read_many
from glassformer.see.steering import steering as _steering
from glassformer.see.sweep import model_strategies as _strategies
from glassformer.see.tokens import model_batch as _batch
from glassformer.see.tokens import model_tokens as _tokens
from glassformer.see.tokens import model_vocabulary as _vocabulary
from glassformer.see.tree import tree as _tree

class ModelOperations:
    attribution_patch = _attribution_patch
    batch = _batch
    circuits = property(_circuits)
    dictionary = _dictionary
    explain = _explain
    load_lens = _load_lens
    load_probes = _load_probes
    look = _look
    parameters = _parameters
    patch = _patch
    patch_pairs = _patch_pairs
    patch_path = _patch_path
    read = _read
    read_ids = _read_ids
    read_many = _read_many
    sites = property(_sites)
    steering = _steering
    strategies = _strategies
    tokens = _tokens
    train_features = _train_features
    tree = _tree
    vocabulary = property(_vocabulary)
