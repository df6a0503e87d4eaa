"""A conversation that keeps its messages. The model computes only what is new: the rest is in the prefix cache."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, AsyncIterator, Dict, Iterator, List, Optional

from ._request import Completion

if TYPE_CHECKING:
    from ._model import Model


class Session:
    """Made by Model.session. `messages` may be read and changed between two questions. A question that fails, or whose
    stream is closed before its end, is not kept. One thread or task at a time."""

    def __init__(self, model: "Model", system: Optional[str], params: Dict[str, Any]) -> None:
        self.messages: List[Dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
        self._model = model
        self._params = params

    def _asked(self, text: str) -> List[Dict[str, str]]:
        return [*self.messages, {"role": "user", "content": text}]

    def _keep(self, asked: List[Dict[str, str]], answer: str) -> None:
        self.messages[:] = [*asked, {"role": "assistant", "content": answer}]

    def send(self, text: str, **params: Any) -> Completion:
        """The whole answer."""
        asked = self._asked(text)
        answer = self._model.chat(asked, **{**self._params, **params})
        self._keep(asked, answer.text)
        return answer

    def stream(self, text: str, **params: Any) -> Iterator[str]:
        """Pieces of the answer as they are generated."""
        asked = self._asked(text)
        with self._model.chat(asked, stream=True, **{**self._params, **params}) as pieces:
            yield from pieces
            answer = pieces.text
        self._keep(asked, answer)

    async def asend(self, text: str, **params: Any) -> Completion:
        asked = self._asked(text)
        answer = await self._model.achat(asked, **{**self._params, **params})
        self._keep(asked, answer.text)
        return answer

    async def astream(self, text: str, **params: Any) -> AsyncIterator[str]:
        asked = self._asked(text)
        answer: List[str] = []
        async with self._model.achat_stream(asked, **{**self._params, **params}) as pieces:
            async for piece in pieces:
                answer.append(piece)
                yield piece
        self._keep(asked, "".join(answer))
