"""Everything the product knows about MLflow: one run per call, fed by all of its ranks.

client.py   in the notebook; never imports mlflow. Begins and ends runs.
rank.py     in a rank; makes plain ``mlflow.*`` calls land in the call's run.
tracker.py  a process of its own, the only one that opens the tracking store.
packets.py  what travels between the three.
"""
