"""A world model served over HTTP, as an OpenEnv environment: one's own policy, or anybody's, steps it from afar.

From the bottom: `wire` (values as JSON), `world` (what can be served), `numeric` and `text` (the two kinds),
`batching` (concurrent steps in one call), `store` (sessions on disk), `sessions` (who holds which episode), `guard`
(who may enter). None of these needs OpenEnv; `openenv` and `app` do (pip install 'worldmodel[serve]').
"""
