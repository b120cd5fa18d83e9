package contract

import (
	"fmt"
	"runtime/debug"
)

// PanicError is a panic that was recovered.
type PanicError struct {
	Value any
	Stack string
}

// Error implements error, without the stack.
func (e *PanicError) Error() string { return fmt.Sprint("it has panicked: ", e.Value) }

// Recovered calls f, and makes an error of a panic. It is for what several stores of a process have
// in common, and does without: a panic of one store closes that store.
func Recovered(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{p, string(debug.Stack())}
		}
	}()
	return f()
}
