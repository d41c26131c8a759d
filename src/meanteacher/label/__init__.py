"""The labelling page: `meanteacher label` asks about the images whose labels would help a fit most, in a browser.

session = open_session(photos, run)        # which images, what is known already
with LabelServer(session) as server:       # on this machine alone
    server.serve_until(should_stop)        # every answer is in labels.csv before the next image is shown
"""
