"""More than one machine, through Ray (extra `ray`): batch jobs, stages of Ray Data, and replicas of the server.

    generate(dataset, "smollm2", workers=4, max_new_tokens=32)
    run_job(partial(glass.load, "smollm2"), "in.jsonl", "out.jsonl", address="auto", workers=4)

Ray is imported when one of these is used, and not before.
"""

from glassformer.scale.dataset import Generator, generate
from glassformer.scale.job import run_job

__all__ = ["Generator", "generate", "run_job"]
