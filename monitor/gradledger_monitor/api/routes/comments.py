"""Comments on the findings of a rule, and the person to whom they are assigned."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field, model_validator
from typing_extensions import Self

from gradledger_monitor.api.app_state import JsonResponse, StoreDep
from gradledger_monitor.api.middleware.credentials import token_name
from gradledger_monitor.api.routes.acknowledgements import RuleId, Text
from gradledger_monitor.api.schemas import problems
from gradledger_monitor.common import clock
from gradledger_monitor.common.problems import Problem
from gradledger_monitor.model.findings import Comment
from gradledger_monitor.rules.docs import rules_by_id
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import comments

router = APIRouter(prefix="/api/v1/findings", tags=["findings"])

PATH = "/{rule}/comments"


class CommentRequest(BaseModel):
    """A comment on the findings of a rule in all runs. With ``assignee``, they are assigned."""

    text: Annotated[str, Field(max_length=4000, pattern=r"^[^\x00]*$")] = ""
    by: Annotated[Text, Field(max_length=256)] | None = None
    assignee: Annotated[str, Field(max_length=256, pattern=r"^[^\x00]*$")] | None = Field(
        None, description="Who looks after the findings; empty: nobody; absent: as before."
    )

    @model_validator(mode="after")
    def _is_not_empty(self) -> Self:
        if not self.text.strip() and self.assignee is None:
            raise ValueError("write a text, or name an assignee")
        return self


class DiscussionDocument(BaseModel):
    """The comments on the findings of a rule, the first one first."""

    rule: str
    assignee: str  # empty: nobody
    comments: list[Comment]


@router.get(PATH, response_model=DiscussionDocument, responses=problems(404, 422))
def list_comments(store: StoreDep, rule: RuleId) -> JsonResponse:
    """The comments on the findings of a rule, and who looks after them."""
    return JsonResponse(_document(store, _existing(rule)))


@router.post(PATH, status_code=201, response_model=DiscussionDocument, responses=problems(404, 422))
def comment(store: StoreDep, rule: RuleId, body: CommentRequest) -> JsonResponse:
    """Add a comment, assign the findings, or both."""
    add(store, rule, body)
    return JsonResponse(_document(store, rule), 201)


def add(store: Store, rule: str, body: CommentRequest) -> None:
    """Store a comment. Raises ``Problem`` if there is no such rule."""
    assignee = None if body.assignee is None else body.assignee.strip()
    added = Comment(body.text.strip(), body.by or token_name(), clock.now(), assignee)
    comments.add_comment(store, _existing(rule), added)


def _document(store: Store, rule: str) -> dict[str, object]:
    discussion = comments.discussion(store, rule)
    return {"rule": rule, "assignee": discussion.assignee, "comments": discussion.comments}


def _existing(rule: str) -> str:
    if rule not in rules_by_id():
        raise Problem(404, f"There is no rule {rule}; `gradledger rules` lists them.")
    return rule
