//! What one worker can run: its workflows, its activities and the state that they share.

use std::any::{Any, type_name};
use std::collections::{BTreeMap, BTreeSet};

use continuum_schema::Name;
use continuum_schema::event::ActivityOptions;

use crate::WorkflowContext;
use crate::activity::{Activity, ActivityCall, ActivityContext, ActivityDefinition, States};
use crate::singleton::{BoxError, RESERVED, Resident, ResidentContext, ResidentDefinition};
use crate::workflow::{Workflow, WorkflowCall, WorkflowDefinition};

/// The workflows, activities and residents of a worker, by name. Usually made by [`registry!`](crate::registry).
///
/// A registry is checked while it is built: two things under one name, or options that make no sense, panic with
/// both sides named, so a wrong program stops at its start and not at its first run.
#[derive(Clone, Default)]
pub struct Registry {
    /// By name; the versions of a workflow in the order of their registration.
    workflows: BTreeMap<&'static str, Vec<WorkflowDefinition>>,
    activities: BTreeMap<&'static str, ActivityDefinition>,
    residents: BTreeMap<Name, ResidentDefinition>,
    states: States,
}

impl Registry {
    /// A registry of nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a workflow or an activity by the name of its function.
    ///
    /// # Panics
    /// If its name is taken or its options make no sense.
    #[must_use]
    pub fn register<M>(self, item: impl Registrable<M>) -> Self {
        item.register(self)
    }

    /// Adds a workflow.
    ///
    /// # Panics
    /// If a workflow with this name has the same hash or the same version number.
    #[must_use]
    pub fn with_workflow(mut self, new: WorkflowDefinition) -> Self {
        check_name(new.path, "workflow name", new.name);
        for signal in new.signals {
            check_name(new.path, "signal name", signal);
        }
        let versions = self.workflows.entry(new.name).or_default();
        for old in &*versions {
            check_versions(old, &new);
        }
        versions.push(new);
        self
    }

    /// Adds an activity.
    ///
    /// # Panics
    /// If an activity with this name is there already, or its options make no sense.
    #[must_use]
    pub fn with_activity(mut self, new: ActivityDefinition) -> Self {
        check_name(new.path, "activity name", new.name);
        if let Err(reason) = check_options(&new.options()) {
            panic!("activity `{}`: {reason}", new.path);
        }
        let path = new.path;
        if let Some(old) = self.activities.insert(new.name, new) {
            panic!(
                "the activity name `{}` is taken twice: by `{}` and by `{path}`",
                old.name, old.path
            );
        }
        self
    }

    /// Adds a resident: a piece of in-memory state that exists on exactly one worker of the fleet. Each worker that
    /// registered the name stands ready to build it; see [`Resident`] for what is promised.
    ///
    /// `build` makes the state from its source of truth, each time that this worker takes the resident.
    ///
    /// # Panics
    /// If the name is taken, begins with `continuum-`, or is not 1 to 128 characters of `A-Z a-z 0-9 _ -`.
    #[must_use]
    pub fn resident<R, F, E>(
        self,
        name: &str,
        build: impl Fn(ResidentContext) -> F + Send + Sync + 'static,
    ) -> Self
    where
        R: Resident,
        F: Future<Output = Result<R, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        check_name(type_name::<R>(), "resident", name);
        assert!(
            !name.starts_with(RESERVED),
            "the resident name `{name}` begins with `{RESERVED}`, as those of the engine's own do"
        );
        let name = Name::of("resident", name).expect("it was just checked");
        self.with_resident(ResidentDefinition::new(name, build))
    }

    fn with_resident(mut self, new: ResidentDefinition) -> Self {
        let path = new.path;
        if let Some(old) = self.residents.insert(new.name.clone(), new) {
            panic!(
                "the resident name `{}` is taken twice: by `{}` and by `{path}`",
                old.name, old.path
            );
        }
        self
    }

    /// Adds everything in `other`.
    ///
    /// # Panics
    /// As each of its parts would.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        assert!(
            self.states.merge(other.states),
            "both registries hold a state of the same type"
        );
        let with_workflows = other
            .workflows
            .into_values()
            .flatten()
            .fold(self, Self::with_workflow);
        let with_activities = other
            .activities
            .into_values()
            .fold(with_workflows, Self::with_activity);
        other
            .residents
            .into_values()
            .fold(with_activities, Self::with_resident)
    }

    /// Adds a value that activities reach with [`ActivityContext::state`], and residents with
    /// [`ResidentContext::state`], for example a database pool.
    ///
    /// # Panics
    /// If there is a value of this type already; wrap one of them in a type of its own.
    #[must_use]
    pub fn state<T: Any + Send + Sync>(mut self, value: T) -> Self {
        assert!(
            self.states.insert(value),
            "the registry holds a state of type `{}` already",
            type_name::<T>()
        );
        self
    }

    /// The code that goes on with a run of the workflow `name` that was begun by the code with this hash: the very
    /// same code, or else the highest version that says it is compatible.
    #[must_use]
    pub fn workflow(&self, name: &str, hash: &str) -> Option<&WorkflowDefinition> {
        let versions = self.workflows.get(name)?;
        versions.iter().find(|v| v.hash == hash).or_else(|| {
            let compatible = versions.iter().filter(|v| v.accepts(hash));
            compatible.max_by_key(|v| v.version)
        })
    }

    /// The code that new runs of the workflow `name` start with: the highest version.
    #[must_use]
    pub fn latest(&self, name: &str) -> Option<&WorkflowDefinition> {
        self.workflows.get(name)?.iter().max_by_key(|v| v.version)
    }

    /// The activity `name`.
    #[must_use]
    pub fn activity(&self, name: &str) -> Option<&ActivityDefinition> {
        self.activities.get(name)
    }

    /// Every version of every workflow, by name.
    pub fn workflows(&self) -> impl Iterator<Item = &WorkflowDefinition> {
        self.workflows.values().flatten()
    }

    /// Every activity, by name.
    pub fn activities(&self) -> impl Iterator<Item = &ActivityDefinition> {
        self.activities.values()
    }

    /// Every resident, by name.
    pub(crate) fn residents(&self) -> impl Iterator<Item = &ResidentDefinition> {
        self.residents.values()
    }

    /// The queues that the activities name by default: what a worker serves unless it is told otherwise.
    #[must_use]
    pub fn queues(&self) -> BTreeSet<String> {
        self.activities().map(|a| a.options().queue).collect()
    }

    /// The values that activities and residents share.
    pub(crate) fn states(&self) -> &States {
        &self.states
    }
}

/// A function that a registry takes: marked `#[workflow]` or `#[activity]`. `M` tells the two apart.
#[diagnostic::on_unimplemented(
    message = "this is neither a workflow nor an activity",
    label = "not marked `#[workflow]` or `#[activity]`",
    note = "mark the function, and name it here without calling it"
)]
pub trait Registrable<M> {
    /// Adds itself.
    #[must_use]
    fn register(self, registry: Registry) -> Registry;
}

/// Tells the implementation of [`Registrable`] for workflows from the one for activities.
pub struct WorkflowItem<W>(std::marker::PhantomData<W>);

/// Tells the implementation of [`Registrable`] for activities from the one for workflows.
pub struct ActivityItem<A>(std::marker::PhantomData<A>);

impl<W, F> Registrable<WorkflowItem<W>> for F
where
    W: Workflow,
    F: for<'a> Fn(&'a WorkflowContext, W::Input) -> WorkflowCall<'a, W>,
{
    fn register(self, registry: Registry) -> Registry {
        registry.with_workflow(WorkflowDefinition::of::<W>())
    }
}

impl<A, F> Registrable<ActivityItem<A>> for F
where
    A: Activity,
    F: Fn(ActivityContext, A::Input) -> ActivityCall<A> + Send + Sync + 'static,
{
    fn register(self, registry: Registry) -> Registry {
        registry.with_activity(ActivityDefinition::new(self))
    }
}

fn check_name(path: &str, what: &'static str, name: &str) {
    if let Err(e) = Name::of(what, name) {
        panic!("`{path}`: {e}");
    }
}

fn check_versions(old: &WorkflowDefinition, new: &WorkflowDefinition) {
    let WorkflowDefinition { name, path, .. } = new;
    assert!(
        old.hash != new.hash,
        "the workflow `{name}` is registered twice with the same code: as `{}` and as `{path}`",
        old.path
    );
    assert!(
        old.version != new.version,
        "two workflows `{name}` both say version {}: `{}` and `{path}`",
        new.version,
        old.path
    );
}

/// Says what is wrong with the options of an activity, whether its author or a caller wrote them.
pub(crate) fn check_options(options: &ActivityOptions) -> Result<(), String> {
    Name::of("queue", options.queue.as_str()).map_err(|e| e.to_string())?;
    let retry = &options.retry;
    if options.timeout_ms == 0 {
        return Err("a timeout of zero fails every attempt".to_owned());
    }
    if !retry.factor.is_finite() || retry.factor < 1.0 {
        return Err(format!("the retry factor {} is less than 1", retry.factor));
    }
    if retry.initial_ms > retry.max_ms {
        return Err(format!(
            "the first wait of {} ms is longer than the longest of {} ms",
            retry.initial_ms, retry.max_ms
        ));
    }
    Ok(())
}

/// Makes a [`Registry`] of the named workflows and activities: `registry![order_flow, v2::order_flow, charge_card]`.
/// The example in [`prelude`](crate::prelude) shows it in its place.
#[macro_export]
macro_rules! registry {
    ($($item:expr),* $(,)?) => {
        $crate::Registry::new()$(.register($item))*
    };
}
