"""A network that loses connections without a word: no reset, no end, just silence in both directions."""

import asyncio
import random

from tests.support.network_plan import Plan
from tests.support.tcp_proxy import TcpProxy


class LossyProxy(TcpProxy):
    """Once begun, a share of the connections (those that are open, and those to come) falls silent after a while.

    Args:
        share: of connections, 0 to 1.
        within: seconds in which a connection that is to be lost falls silent; when, is a matter of chance.
    """

    def __init__(self, upstream_host: str, upstream_port: int, *, share: float, within: float, seed: int) -> None:
        super().__init__(upstream_host, upstream_port)
        self.lost = 0
        self.seen = 0
        self._share = share
        self._within = within
        self._chance = random.Random(seed)
        self._begun = False
        self._plans: list[Plan] = []
        self._silencing: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """From now on connections are lost."""
        self._begun = True
        for plan in self._plans:
            self._decide(plan)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        plan = Plan()
        self._plans.append(plan)
        if self._begun:
            self._decide(plan)
        self.next_plans.append(plan)
        super()._accept(reader, writer)

    def _decide(self, plan: Plan) -> None:
        self.seen += 1
        if self._chance.random() < self._share:
            self.lost += 1
            task = asyncio.create_task(self._silence(plan, self._chance.uniform(0.05, 0.95) * self._within))
            self._silencing.add(task)
            task.add_done_callback(self._silencing.discard)

    @staticmethod
    async def _silence(plan: Plan, after: float) -> None:
        await asyncio.sleep(after)
        plan.hold_request = plan.hold_reply = True
