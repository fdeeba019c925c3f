package engine

// WindowPeriod says of a model's architecture (general.architecture) whether its sliding windows are of the standard kind: a token sees
// the last so many positions, so what lies behind the window may go. They are not in chunked attention (llama4) and in encoders, whose
// windows are symmetric, and models that are not known are taken for neither. period is how many layers there are for each one
// without a window, the last of them; 0: only the file knows. llama.cpp has no call for either (src/models/*.cpp: swa_type,
// set_swa_pattern).
func WindowPeriod(architecture string) (period int, standard bool) {
	switch architecture {
	case "gemma2", "gpt-oss":
		return 2, true
	case "cohere2", "olmo2":
		return 4, true
	case "gemma3n":
		return 5, true
	case "gemma3":
		return 6, true
	case "plamo3":
		return 8, true
	case "gemma4":
		return 0, true
	}
	return 0, false
}

// Limits by which the cache of window layers is chosen (LoadSpec.WindowCache "auto"), by worker and front end alike.
const (
	// FullWindowShare: window layers keep all cells where the cache then takes at most one part in so many of the memory that is
	// free beside the weights.
	FullWindowShare = 4
	// LeastWindowSequences is how few sequences there are when nobody asked for a number and the windows of more do not fit: what
	// llama-server serves without being told.
	LeastWindowSequences = 4
)
