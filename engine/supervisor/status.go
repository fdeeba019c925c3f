package supervisor

import (
	"time"

	"hearth/engine"
)

// State is where a model is in its life.
type State string

// States of a model.
const (
	StateLoading    State = "loading"
	StateReady      State = "ready"
	StateRestarting State = "restarting"
	StateFailed     State = "failed"
	StateStopping   State = "stopping"
)

// Status describes one model of the pool at one moment.
type Status struct {
	Name  string
	State State
	Since time.Time // of State
	PID   int       // 0 while no worker lives
	// Stage and Progress (0..1) tell how far a load is.
	Stage    string
	Progress float64
	// Plan is the label of the plan in use; Fallback says why it is not the first one, "" when it is.
	Plan, Fallback string
	Backend        string
	Info           engine.Info // zero until the first load is done
	Stats          engine.Stats
	InUse          int // holders of an Acquire
	Requests       int // running and queued
	// Expires is when the model will be unloaded if nobody uses it; zero while in use or kept for good.
	Expires time.Time
	// Restarts, Faults and Fallbacks count since the model was first loaded: every restart, crashes that the backend
	// caused, and changes of plan.
	Restarts, Faults, Fallbacks int
	// LastError is why the last worker ended or did not load, Stderr what it printed last (at most 64 KiB).
	LastError string
	Stderr    string
}
