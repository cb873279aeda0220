//! Values that the application shares with its handlers.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// The values from `InboxBuilder::state`, one per type.
#[derive(Clone, Default)]
pub(crate) struct States(HashMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl States {
    pub(crate) fn insert<T: Clone + Send + Sync + 'static>(&mut self, value: T) {
        self.0.insert(TypeId::of::<T>(), Arc::new(value));
    }

    fn get<T: Clone + 'static>(&self) -> Option<T> {
        self.0.get(&TypeId::of::<T>())?.downcast_ref().cloned()
    }

    pub(crate) fn has(&self, requirement: Requirement) -> bool {
        self.0.contains_key(&requirement.id)
    }
}

impl fmt::Debug for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "States({})", self.0.len())
    }
}

/// A type of state that a handler's parameters need; `build()` checks that the builder has it.
#[derive(Clone, Copy, Debug)]
pub struct Requirement {
    // By type, so that `build()` finds a missing state before the first message needs it.
    id: TypeId,
    pub(crate) name: &'static str,
}

impl Requirement {
    /// The requirement for a state of type `T`.
    pub fn of<T: 'static>() -> Self {
        Self { id: TypeId::of::<T>(), name: type_name::<T>() }
    }
}

/// A clone of the value from [`InboxBuilder::state`](crate::InboxBuilder::state).
///
/// Take it as in axum: `State(mailer): State<Mailer>`. If cloning is expensive, wrap the value in an [`Arc`].
#[derive(Clone, Copy, Debug, Default)]
pub struct State<T>(pub T);

impl<T: Clone + 'static> State<T> {
    pub(crate) fn from_states(states: &States) -> Option<Self> {
        states.get().map(Self)
    }
}

impl<T> Deref for State<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for State<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
