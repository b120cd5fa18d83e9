package builtin

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/clock"

	"github.com/rowkeeper/rowkeeper/pkg/registry/table"
)

// eventTTL is for how many seconds an event is kept: an hour, as in a cluster.
const eventTTL = 60 * 60

var events = resource[*corev1.Event]{
	resource: corev1.Resource("events"), singular: corev1.Resource("event"),
	shortNames: []string{"ev"},
	new: func() *corev1.Event {
		return &corev1.Event{}
	}, newList: func() runtime.Object { return &corev1.EventList{} },
	// Names of v1 may be anything.
	name:            segmentName,
	validateRequest: checkEvent,
	selectable: func(e *corev1.Event, set fields.Set) {
		source := e.Source.Component
		if source == "" {
			source = e.ReportingController
		}
		about := e.InvolvedObject
		for _, names := range [][]string{eventFields("involvedObject.", "source",
			"reportingComponent"), eventFields("regarding.", "deprecatedSource",
			"reportingController")} {
			for i, value := range []string{
				about.Kind, about.Namespace, about.Name, string(about.UID), about.APIVersion,
				about.ResourceVersion, about.FieldPath,
				e.Reason, e.Type, source, e.ReportingController,
			} {
				set[names[i]] = value
			}
		}
	},
	columns: []metav1.TableColumnDefinition{
		{Name: "Last Seen", Type: "string", Description: "The time since it happened last."},
		{Name: "Type", Type: "string", Description: "Normal or Warning."},
		{Name: "Reason", Type: "string", Description: "Why it happened, in one word."},
		{Name: "Object", Type: "string", Description: "What it happened to."},
		{Name: "Message", Type: "string", Description: "What happened."},
	},
	cells: func(e *corev1.Event) []any {
		last := e.LastTimestamp
		for _, at := range []metav1.Time{metav1.Time(e.EventTime), e.FirstTimestamp} {
			if last.IsZero() {
				last = at
			}
		}
		if e.Series != nil {
			last = metav1.Time(e.Series.LastObservedTime)
		}
		return []any{table.Age(last, clock.RealClock{}), e.Type, e.Reason,
			fmt.Sprintf("%s/%s", e.InvolvedObject.Kind, e.InvolvedObject.Name), e.Message}
	},
	ttl:            eventTTL,
	createOnUpdate: true,
}

// eventFields are the fields that events can be selected by, under the names that one of the groups
// has for them.
func eventFields(object, source, controller string) []string {
	return []string{
		object + "kind", object + "namespace", object + "name", object + "uid", object +
			"apiVersion", object + "resourceVersion", object + "fieldPath",
		"reason", "type", source, controller,
	}
}

// The most bytes that an event may have in its message, and in each of its other words.
const (
	maxMessage = 1024
	maxWord    = 128
)

// checkEvent checks an event. v1 is older, and asks for little. events.k8s.io asks for all that
// tells who saw what, and lets nothing change but the series. Most fields have the names of v1, as
// in a cluster.
func checkEvent(ctx context.Context, e, old *corev1.Event) (errs field.ErrorList) {
	info, _ := genericapirequest.RequestInfoFrom(ctx)
	strict := info != nil && info.APIGroup == eventsv1.GroupName
	if !strict && e.EventTime.IsZero() {
		// Events of objects without a namespace are in the default one, or in kube-system.
		if of := e.InvolvedObject.Namespace; of != e.Namespace && (of != "" || !ofNoNamespace(e)) {
			errs = append(errs, field.Invalid(field.NewPath("involvedObject", "namespace"), of,
				"does not match event.namespace"))
		}
		return errs
	}
	if e.InvolvedObject.Namespace == "" && !ofNoNamespace(e) {
		errs = append(errs, field.Invalid(field.NewPath("involvedObject", "namespace"), "",
			"does not match event.namespace"))
	}
	word := func(at *field.Path, value string) {
		if value == "" {
			errs = append(errs, field.Required(at, ""))
		} else if len(value) > maxWord {
			errs = append(errs, field.Invalid(at, "", fmt.Sprintf("may have at most %d bytes",
				maxWord)))
		}
	}
	controller := field.NewPath("reportingComponent")
	if strict {
		controller = field.NewPath("reportingController")
	}
	if e.ReportingController == "" {
		errs = append(errs, field.Required(controller, ""))
	}
	errs = append(errs, checkQualified(controller, e.ReportingController)...)
	word(field.NewPath("reportingInstance"), e.ReportingInstance)
	word(field.NewPath("action"), e.Action)
	word(field.NewPath("reason"), e.Reason)
	if len(e.Message) > maxMessage {
		errs = append(errs, field.Invalid(field.NewPath("message"), "",
			fmt.Sprintf("may have at most %d bytes", maxMessage)))
	}
	if !strict {
		return errs
	}
	errs = append(errs, checkFinalizers(e.Finalizers, metadataPath.Child("finalizers"))...)
	if old != nil {
		return append(errs, checkSame(e, old)...)
	}
	if e.Name != "" && len(segmentName(e.Name, false)) == 0 {
		for _, message := range validation.NameIsDNSSubdomain(e.Name, false) {
			errs = append(errs, field.Invalid(metadataPath.Child("name"), e.Name, message))
		}
	}
	if e.EventTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	if e.Type != corev1.EventTypeNormal && e.Type != corev1.EventTypeWarning {
		errs = append(errs, field.Invalid(field.NewPath("type"), e.Type, "must be Normal or Warning"))
	}
	for name, is := range map[string]bool{"source": e.Source != corev1.EventSource{},
		"firstTimestamp": !e.FirstTimestamp.IsZero(), "lastTimestamp": !e.LastTimestamp.IsZero(),
		"count": e.Count != 0} {
		if is {
			errs = append(errs, field.Invalid(field.NewPath(name), "", "is for events of v1"))
		}
	}
	return append(errs, checkSeries(e.Series)...)
}

// ofNoNamespace tells whether an event is where those of objects without a namespace are.
func ofNoNamespace(e *corev1.Event) bool {
	return e.Namespace == metav1.NamespaceDefault || e.Namespace == metav1.NamespaceSystem
}

func checkSeries(s *corev1.EventSeries) (errs field.ErrorList) {
	if s == nil {
		return nil
	}
	at := field.NewPath("series")
	if s.Count < 2 {
		errs = append(errs, field.Invalid(at.Child("count"), s.Count, "must be 2 or more"))
	}
	if s.LastObservedTime.IsZero() {
		errs = append(errs, field.Required(at.Child("lastObservedTime"), ""))
	}
	return errs
}

// checkSame refuses all changes but those of the series.
func checkSame(e, old *corev1.Event) (errs field.ErrorList) {
	for _, f := range []struct {
		name    string
		is, was any
	}{
		{"involvedObject", e.InvolvedObject, old.InvolvedObject}, {"reason", e.Reason, old.Reason},
		{"message", e.Message, old.Message}, {"source", e.Source, old.Source},
		{"firstTimestamp", e.FirstTimestamp, old.FirstTimestamp},
		{"lastTimestamp", e.LastTimestamp, old.LastTimestamp}, {"count", e.Count, old.Count},
		{"type", e.Type, old.Type}, {"action", e.Action, old.Action}, {"related", e.Related, old.Related},
		{"reportingController", e.ReportingController, old.ReportingController},
		{"reportingInstance", e.ReportingInstance, old.ReportingInstance},
		{"eventTime", e.EventTime, old.EventTime},
	} {
		errs = append(errs, validation.ValidateImmutableField(f.is, f.was, field.NewPath(f.name))...)
	}
	if !apiequality.Semantic.DeepEqual(e.Series, old.Series) {
		errs = append(errs, checkSeries(e.Series)...)
	}
	return errs
}
