"""Links between regions: the target fetches, any node of the source serves.

- `frames.py`: what goes over a link, as lines of JSON; `errors.py`: how it ends;
- `serving.py`, `feed.py`, `acknowledged.py`: the source's side, on every node;
- `transport.py`: from one to the other, over the source's door; `door.py`: the routes there;
- `leading.py`: the target's side, on its leader: a `Pull` for each source (`pulling.py`), over
  `lanes.py`, `arrivals.py`, `checks.py`, `pausing.py`, `proposing.py` and `reporting.py`;
- `spans.py`: arithmetic of both sides.
"""
