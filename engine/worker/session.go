package worker

import (
	"sync"

	"hearth/engine/enginepb"
)

// session is one Serve stream: where the events of its requests go. The loop fills cur and hands it over once a step;
// the stream's sender takes whatever has gathered, so a slow stream gets larger frames and never holds up the loop.
type session struct {
	cur *enginepb.WorkerFrame // the loop's
	in  bool                  // the loop's: listed among the sessions with news in this step

	held bool // the loop's: jobs are on hold because too much is unsent

	mu     sync.Mutex
	queued *enginepb.WorkerFrame
	spare  *enginepb.WorkerFrame
	wake   chan struct{} // holds one token when queued is not nil
}

// holdEvents is how many unsent events put a session's jobs on hold. A frame carries about one event per running
// choice, so this is some 100 steps of a full batch: seconds that the front end did not read.
const holdEvents = 8192

func newSession() *session {
	return &session{cur: new(enginepb.WorkerFrame), wake: make(chan struct{}, 1)}
}

// hand passes cur on to the sender and returns how many events wait to be sent.
func (s *session) hand() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queued == nil {
		s.queued = s.cur
	} else {
		q, c := s.queued, s.cur
		q.Events = append(q.Events, c.Events...)
		q.Failures = append(q.Failures, c.Failures...)
		if c.Stats != nil {
			q.Stats = c.Stats
		}
	}
	if s.spare != nil {
		s.cur, s.spare = s.spare, nil
	} else {
		s.cur = new(enginepb.WorkerFrame)
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return len(s.queued.Events)
}

// take returns what is to be sent, nil if nothing.
func (s *session) take() *enginepb.WorkerFrame {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.queued
	s.queued = nil
	return f
}

// recycle gives back a frame that was sent, so that its slices serve again.
func (s *session) recycle(f *enginepb.WorkerFrame) {
	clear(f.Events)
	clear(f.Failures)
	f.Events, f.Failures, f.Stats = f.Events[:0], f.Failures[:0], nil
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spare = f
}

// fail queues the failure of a request that never reached the loop. Any goroutine.
func (s *session) fail(id uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queued == nil {
		s.queued = new(enginepb.WorkerFrame)
	}
	s.queued.Failures = append(s.queued.Failures, &enginepb.Failure{Id: id, Error: enginepb.FromError(err)})
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
