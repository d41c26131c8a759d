"""The labelling page: `meanteacher label` asks about the photos whose labels would help a fit most, in a browser.

session = open_session(photos, run)        # the photos to label, and the labels that are known
with LabelServer(session) as server:       # reachable from this machine only
    server.serve_until(should_stop)        # every answer is in the labels file before the next photo is shown
"""
