"""Made by tools/operation_texts.py."""

from glassformer.observe.activations import Activations
from glassformer.observe.attention import attention as _attention
from glassformer.observe.attention import attention_maps as _attention_maps
from glassformer.observe.attention import heads as _heads
from glassformer.observe.attribution import attribution as _attribution
from glassformer.observe.attribution_graph import graph as _graph
from glassformer.observe.circuits import circuit as _circuit
from glassformer.observe.experts import experts as _experts
from glassformer.observe.features import features as _features
from glassformer.observe.inside import inside as _inside
from glassformer.observe.lens import lens as _lens
from glassformer.observe.saliency import gradients as _gradients
from glassformer.observe.saliency import saliency as _saliency
from glassformer.observe.trace import trace as _trace

class Reading(Activations):
    attention = _attention
    attention_maps = _attention_maps
    attribution = _attribution
    circuit = _circuit
    experts = _experts
    features = _features
    gradients = _gradients
    graph = _graph
    heads = _heads
    inside = _inside
    lens = _lens
    saliency = _saliency
    trace = _trace
