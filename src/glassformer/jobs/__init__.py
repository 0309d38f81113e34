"""Batch jobs: a file of rows in, a file of answers out, and nothing lost on the way.

summary = run_job(glass.load("smollm2"), "in.jsonl", "out.jsonl", max_new_tokens=32)
"""

from glassformer.jobs.job import JobProgress, JobSummary, run_job

__all__ = ["JobProgress", "JobSummary", "run_job"]
