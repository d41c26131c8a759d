"""The labelling page: `meanteacher label` asks about the images whose labels would help a fit most, in a browser.

session = open_session(photos, run)        # the images to label, and the labels that are known
with LabelServer(session) as server:       # reachable from this machine only
    server.serve_until(should_stop)        # every answer is in labels.csv before the next image is shown
"""
