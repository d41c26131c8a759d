"""Many recipes over many label draws into one folder: resumable, one bar, the demo's work and the gallery's."""





class InterruptedError_(Exception):
    pass
