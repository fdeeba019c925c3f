// Package supervisor keeps models resident: one worker process for each loaded model, spawned with an explicit
// environment, watched, restarted, and stopped so that nothing of it stays in memory.
//
// The front end asks a Pool for a model and gets an engine.Model. Behind it a model's run loop (one goroutine) owns the
// life of its worker:
//
//	          +--> failed (no plan left; the next Acquire starts over)
//	          |
//	loading --+--> ready --crash--> restarting --+--> ready (running requests are replayed)
//	                 |                           |
//	                 +--Stop, eviction, expiry--> stopping --> gone
//
// Every running request is journalled: its parameters, a fixed seed, and the tokens already sent. When a worker dies the
// next one receives the same request with those tokens as Resume, so the client's stream pauses and goes on. A request
// that was admitted during two crashes is failed, and refused when it comes again.
//
// How a model is started is not decided here: a Resolver turns a name into a Plan (which file, which backend, which
// environment) and lists the plans to fall back to. Taking a fallback is loud: a log line, a counter and a field of Status.
//
// Concurrency: every exported method may be called from any goroutine. Pool.mu guards the table of models, model.mu one
// model, request.mu one request; they are taken in this order and none is held across a call into a worker.
package supervisor
