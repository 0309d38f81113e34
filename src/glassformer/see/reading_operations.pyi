"""Made by tools/operation_texts.py."""

from glassformer.see.attention import attention as _attention
from glassformer.see.attention import attention_maps as _attention_maps
from glassformer.see.attention import heads as _heads
from glassformer.see.attribution import attribution as _attribution
from glassformer.see.attribution_graph import graph as _graph
from glassformer.see.circuits import circuit as _circuit
from glassformer.see.experts import experts as _experts
from glassformer.see.explain.compute import explain as _explain
from glassformer.see.features import features as _features
from glassformer.see.inside.compute import inside as _inside
from glassformer.see.lens import lens as _lens
from glassformer.see.saliency import gradients as _gradients
from glassformer.see.saliency import saliency as _saliency
from glassformer.see.trace import trace as _trace

class ReadingOperations:
    attention = _attention
    attention_maps = _attention_maps
    attribution = _attribution
    circuit = _circuit
    experts = _experts
    explain = _explain
    features = _features
    gradients = _gradients
    graph = _graph
    heads = _heads
    inside = _inside
    lens = _lens
    saliency = _saliency
    trace = _trace
