"""What exists only for photos: the folder, features of its photos, the fit, the model, labelling, pages."""
