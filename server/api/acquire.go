package api

import (
	"cmp"
	"context"

	"hearth/engine"
)

// Acquire returns the named model from models. Without a name it is def, or else the only model there is, loaded ones
// first; when that leaves a choice the client has to make it, and gets a 400. Where the model runs is noted in the Request
// that ctx carries.
func Acquire(ctx context.Context, models Models, name, def string) (engine.Model, func(), error) {
	if name == "" {
		name = def
	}
	if name == "" {
		if loaded := models.Loaded(); len(loaded) == 1 {
			name = loaded[0].Name
		}
	}
	if name == "" {
		entries, err := models.List(ctx)
		if err != nil {
			return nil, nil, err
		}
		if len(entries) != 1 {
			return nil, nil, BadField("model", "must name a model")
		}
		name = entries[0].Name
	}
	model, release, err := models.Acquire(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	info := model.Info()
	RequestFrom(ctx).SetPlacement(Placement{
		Backend: info.Backend, Device: cmp.Or(info.Device.PCI, info.Device.Name), Fallback: models.Fallback(info.Name),
	})
	return model, release, nil
}
