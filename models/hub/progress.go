package hub

// Progress shows what a pull does. Calls for one Bar come from one goroutine at a time; several Bars may be open.
type Progress interface {
	// Bar starts a transfer of total bytes (negative: not known yet).
	Bar(label string, total int64) Bar
	// Note says one thing that happened, such as a retry.
	Note(text string)
}

// Bar is one transfer.
type Bar interface {
	// Set moves to n bytes of total (negative: not known). n may go back when a transfer starts again.
	Set(n, total int64)
	// Done ends the bar; err is why it did not finish.
	Done(err error)
}

// Quiet shows nothing.
type Quiet struct{}

// Bar implements Progress.
func (Quiet) Bar(string, int64) Bar { return quietBar{} }

// Note implements Progress.
func (Quiet) Note(string) {}

type quietBar struct{}

func (quietBar) Set(int64, int64) {}
func (quietBar) Done(error)       {}
