"""Put what is saved to a folder into a repository of the hub."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

from glassformer.ground.arguments import checked


@checked
def upload(
    save: Callable[[str], Any],
    repo_id: str,
    *,
    commit_message: str,
    commit_description: str | None = None,
    private: bool | None = None,
    token: str | bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
) -> str:
    """Upload what `save` writes into a folder; gives the address of the commit or the pull request.

    The repository is made if need be. The other arguments are those of huggingface_hub.
    """
    from huggingface_hub import HfApi

    hub = HfApi(token=token)
    repository = hub.create_repo(repo_id, private=private, exist_ok=True).repo_id
    with tempfile.TemporaryDirectory(prefix="glassformer-") as folder:
        save(folder)
        commit = hub.upload_folder(
            repo_id=repository, folder_path=folder, commit_message=commit_message, commit_description=commit_description,
            revision=revision, create_pr=create_pr,
        )  # fmt: skip
    return str(commit)
